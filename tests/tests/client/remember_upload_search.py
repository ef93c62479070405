"""A session of the published client persistmemory against our API: what a program that knows nothing of us would do.

Usage: remember_upload_search.py SCAN.png, with STEADFAST_URL and PERSISTMEMORY_API_KEY set. Prints one JSON object about what it
saw; the story that starts this judges it.
"""

import hashlib
import json
import os
import sys
import time
from importlib import metadata
from pathlib import Path

import persistmemory
from persistmemory import PersistMemory, PersistMemoryError

NOTE = "The espresso machine on the second floor is broken; Maria calls the repair service on Monday."


def fingerprint() -> str:
    """Of all modules of the package as they lie here: an edited one is not the client that was published."""
    folder = Path(persistmemory.__file__).parent
    lines = [f"{p.name} {hashlib.sha256(p.read_bytes()).hexdigest()}\n" for p in sorted(folder.glob("*.py"))]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def until_completed(client: PersistMemory, job_id: str) -> str:
    """The client's own words: poll jobs.get, the terminal success state is `completed`."""
    deadline = time.monotonic() + 90
    while True:
        status = client.jobs.get(job_id)["status"]
        if status in ("completed", "failed", "dead") or time.monotonic() > deadline:
            return status
        time.sleep(0.1)


def first_whole(client: PersistMemory, question: str) -> dict:
    """The first answer in which nothing is on its way any more: a job is completed when its words can be found, a moment before its meaning."""
    deadline = time.monotonic() + 60
    while True:
        answer = client.search.query(question, limit=5)
        if answer["diagnostics"].get("pending") == 0 or time.monotonic() > deadline:
            results = answer["results"]
            return {
                "first": results[0]["documentId"] if results else None,
                "degraded": answer["diagnostics"]["degraded"],
            }
        time.sleep(0.1)


def kind_of(call) -> dict:
    try:
        call()
    except PersistMemoryError as error:
        return {"kind": type(error).__name__, "message": str(error)}
    return {"kind": None, "message": ""}


def main() -> None:
    scan = Path(sys.argv[1])
    url = os.environ["STEADFAST_URL"]
    with PersistMemory(base_url=url) as client:
        spaces = list(client.spaces.list())
        space = spaces[0]["id"]
        remembered = client.memories.remember(NOTE, space_ids=[space])
        uploaded = client.files.upload(scan.read_bytes(), filename=scan.name, content_type="image/png", space_id=space)
        once = client.memories.remember("Said twice.", space_ids=[space], idempotency_key="standup:1")
        twice = client.memories.remember("Said twice.", space_ids=[space], idempotency_key="standup:1")
        jobs = {
            "note": until_completed(client, remembered["jobId"]),
            "scan": until_completed(client, uploaded["jobId"]),
        }
        found = {
            "note": first_whole(client, "who fixes the coffee maker"),
            "scan": first_whole(client, "when must the renter move out"),
        }
        refused = kind_of(lambda: client.memories.remember("where to?"))
        missing = kind_of(lambda: client.jobs.get("999999999"))["kind"]
    with PersistMemory("sf_nobody", base_url=url) as client:
        stranger = kind_of(lambda: client.spaces.list().first())["kind"]
    json.dump(
        {
            "version": metadata.version("persistmemory"),
            "fingerprint": fingerprint(),
            "spaces": [s["name"] for s in spaces],
            "remembered": remembered,
            "uploaded": uploaded,
            "jobs": jobs,
            "found": found,
            "refused": refused,
            "missing": missing,
            "stranger": stranger,
            "repeated": once["jobId"] == twice["jobId"],
        },
        sys.stdout,
    )


if __name__ == "__main__":
    main()
