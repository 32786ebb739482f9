"""What prepares inputs: training of tokenizers, the tokenizer of aMLP-japanese, timm's image processor."""
