"""BERT, RoBERTa and other encoders of their names."""

from .blocks import Attention, Perceptron
from .transformer import Transformer

MODEL_TYPES = ("bert", "roberta", "xlm-roberta", "camembert", "electra", "data2vec-text", "ernie")

FAMILY = Transformer(
    "BERT",
    sublayers=(
        (
            Attention(
                query="attention.self.query",
                key="attention.self.key",
                value="attention.self.value",
                output="attention.output.dense",
            ),
        ),
        (Perceptron(up=("intermediate.dense",), down="output.dense"),),
    ),
    embeddings=("word_embeddings",),
    model_types=MODEL_TYPES,
    projection_in="embeddings_project",
    before_unembedding=("cls.predictions.transform.dense", "lm_head.dense", "generator_predictions.dense"),
    unembedding=("cls.predictions.decoder", "lm_head.decoder", "generator_lm_head"),
    outputs=(("pooler.dense", "classifier"), ("classifier.dense", "classifier.out_proj"), ("qa_outputs",)),
    tied=MODEL_TYPES,
)
