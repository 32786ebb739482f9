"""What models can do besides computing: be saved with their code, count their operations, change their length."""
