"""What a mistyped name is told."""

import pytest

from fedtailor._base.choice import check_choice, require_one_of

NAMES = {"ucfl": 1, "fedavg": 2}


def test_a_known_name_passes():
    check_choice("ucfl", NAMES, "method")


@pytest.mark.parametrize(
    ("given", "listed_by", "message"),
    [
        (
            "ucfll",
            None,
            (
                "there is no method 'ucfll'; did you mean 'ucfl'? choose one of ucfl,"
                " fedavg"
            ),
        ),
        ("zzz", None, "there is no method 'zzz'; choose one of ucfl, fedavg"),
        (
            "fedavgg",
            "fedtailor algorithms",
            (
                "there is no method 'fedavgg'; did you mean 'fedavg'? `fedtailor"
                " algorithms`"
            ),
        ),
        (3, None, "there is no method 3; choose one of"),
        (["ucfl"], None, "there is no method"),
        ("", None, "there is no method ''; choose one of"),
    ],
)
def test_other_names_are_refused_with_the_nearest(given, listed_by, message):
    with pytest.raises(ValueError, match=r"^there is") as raised:
        check_choice(given, NAMES, "method", listed_by)
    assert str(raised.value).startswith(message) and "\n" not in str(raised.value)


def test_a_setting_has_one_of_its_values():
    require_one_of("hf", ("hf", "fo"), "variant")
    with pytest.raises(ValueError, match=r"^variant is 'h'; it must be one of hf, fo$"):
        require_one_of("h", ("hf", "fo"), "variant")
