import subprocess
import sys

import pytest

import fedgh


def test_every_public_name_can_be_imported() -> None:
    for name in fedgh.__all__:
        assert getattr(fedgh, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = fedgh.nothing


def test_help_does_not_import_slow_packages() -> None:
    code = "import sys, fedgh.cli; sys.exit(bool({'torch', 'pandas'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
