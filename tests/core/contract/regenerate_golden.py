"""`python -m tests.core.contract.regenerate_golden`: freeze the wire anew. Commit only what you understand."""

from tests.core.contract.golden import GOLDEN_FILE, golden_text

if __name__ == "__main__":
    GOLDEN_FILE.write_text(golden_text(), encoding="utf-8")
