"""Writes the held-out evaluation to `eval/*.jsonl`: 200 items a skill, and the stories for perplexity."""

import json
from pathlib import Path

from corpus import evaluation

ITEMS, STORIES = 200, 200


def main():
    """Writes one file a skill and one of stories."""
    folder = Path(__file__).parent / "eval"
    for skill in evaluation.SKILLS:
        _write(folder / f"{skill}.jsonl", evaluation.items(skill, ITEMS))
    _write(folder / "stories.jsonl", [{"text": text} for text in evaluation.held_out_stories(STORIES)])


def _write(path, rows):
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


if __name__ == "__main__":
    main()
