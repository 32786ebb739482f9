"""The first draw of finetuning on few rows: the accuracy of `run_glue` and of a classifier on embeddings."""

import random

import pandas as pd
from sentence_transformers import SentenceTransformer
from sklearn.linear_model import LogisticRegressionCV

import tokenmixers
from tokenmixers.run_scripts import run_glue

size, draw = 200, 0
train, test = (pd.read_csv(f"glue/SST-2/{part}.tsv", sep="\t", quoting=3, keep_default_na=False) for part in ("train", "dev"))
drawn = train.iloc[random.Random(draw).sample(range(len(train)), size)]
drawn.to_csv("draw.tsv", sep="\t", quoting=3, index=False)
files = "--train_file draw.tsv --validation_file glue/SST-2/dev.tsv --text_column_names sentence --output_dir outputs/draw"
results = run_glue.main(["--model_name_or_path", "gmlp-minilm", *files.split(), "--do_train", "--do_eval"])
print(results["eval_accuracy"])
encoder = SentenceTransformer(tokenmixers.shipped_model("gmlp-minilm"))
classifier = LogisticRegressionCV(Cs=[0.1, 1, 10, 100, 1000], cv=5, max_iter=2000)
classifier.fit(encoder.encode([*drawn.sentence]), drawn.label)
print(classifier.score(encoder.encode([*test.sentence]), test.label))
