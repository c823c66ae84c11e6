"""A program whose parent is written in Rust, with typed values: carries out its jobs with the codec `plain`."""

import os

import numpy

import strait

with strait.parent() as parent:
    for job in parent:
        assert isinstance(job["numbers"], numpy.ndarray)
        with os.fdopen(job["file"].detach()) as file:
            text = file.read()
        job["to"].write_whole(job["from"].read_whole(6, timeout=60), timeout=60)
        answer = {
            "name": job["name"].upper(), "sum": float(job["numbers"].sum()), "doubled": job["numbers"] * 2,
            "text": text, "bytes_in_region": len(job["region"]),
        }
        job["copy"].send(answer, timeout=60)
        parent.send({**answer, "back": job["back"]}, timeout=60)
