from tokenmixers.run_scripts.base.shipped_files import MODEL_CARDS


def test_model_cards_are_where_scripts_look():
    assert (MODEL_CARDS / "gmlp-base" / "config.json").is_file()
