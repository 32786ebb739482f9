"""scikit-learn: embeddings as a step of a pipeline, in cross-validation and in a search, saved with joblib."""

import json
import sys

import joblib
from sentence_transformers import SentenceTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer


source, output = sys.argv[1:]
texts = [f"{animal} {verb}." for verb in ("sleep", "run") for animal in ("Cats", "Dogs", "Birds")]
texts += [f"The {thing} costs {price}." for price in ("a lot", "little") for thing in ("car", "house", "train")]
labels = [0] * 6 + [1] * 6
model = SentenceTransformer(source, trust_remote_code=True, device="cpu")
whole = make_pipeline(FunctionTransformer(model.encode), LogisticRegression())
grid = {"functiontransformer__kw_args": [{"truncate_dim": 8}, {"truncate_dim": 384}]}
searched = GridSearchCV(whole, grid, cv=3).fit(texts, labels)
joblib.dump(searched.best_estimator_, f"{output}/pipeline.joblib")
unseen = ["Horses run.", "The bus costs nothing."]
print(
    json.dumps(
        {
            "validated": cross_val_predict(whole, texts, labels, cv=3).tolist(),
            "by_hand": cross_val_predict(LogisticRegression(), model.encode(texts), labels, cv=3).tolist(),
            "answers": searched.predict(unseen).tolist(),
            "loaded": joblib.load(f"{output}/pipeline.joblib").predict(unseen).tolist(),
        }
    )
)
