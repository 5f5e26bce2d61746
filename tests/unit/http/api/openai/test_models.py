from __future__ import annotations

import json

from openai.types import Model as SdkModel

from penstock.http.api.openai import models

MODEL = models.Model(id="tiny", created=1_700_000_000, max_model_len=128)


def test_models() -> None:
    one = models.encode_model(MODEL)

    SdkModel.model_validate_json(one, strict=True)
    assert json.loads(one) == {
        "id": "tiny",
        "object": "model",
        "created": 1_700_000_000,
        "owned_by": "penstock",
        "max_model_len": 128,
    }
    assert json.loads(models.encode_models([MODEL])) == {"object": "list", "data": [json.loads(one)]}
