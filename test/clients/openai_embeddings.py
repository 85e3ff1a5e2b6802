"""Embeddings as a user of the official Python client makes them. Arguments: base URL with /v1, API key.

The server runs with a pooling (--pooler-config last, where the model's files name none).
"""

import concurrent.futures
import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1], api_key=sys.argv[2], max_retries=0)
model = client.models.list().data[0].id
texts = ["The cat sat on the mat.", "A cat is sitting on a mat.", "Interest rates rose again in May."]


def embed(text, **arguments):
    return client.embeddings.create(model=model, input=text, **arguments)


def dot(a, b):
    return sum(x * y for x, y in zip(a, b))


batch = embed(texts)  # base64 on the wire: the client's default
vectors = [item.embedding for item in batch.data]
assert [item.index for item in batch.data] == [0, 1, 2] and batch.object == "list"
assert all(abs(dot(vector, vector) - 1) < 1e-5 for vector in vectors)
assert batch.usage.prompt_tokens == batch.usage.total_tokens > 0

floats = embed(texts, encoding_format="float")
assert all(max(abs(x - y) for x, y in zip(a, b.embedding)) < 2e-2 for a, b in zip(vectors, floats.data))
assert dot(vectors[0], vectors[1]) > dot(vectors[0], vectors[2]), "texts of one meaning lie closer"

short = embed(texts[0], dimensions=16).data[0].embedding
assert len(short) == 16 and abs(dot(short, short) - 1) < 1e-5
norm = dot(vectors[0][:16], vectors[0][:16]) ** 0.5
assert max(abs(x - y / norm) for x, y in zip(short, vectors[0])) < 2e-2

with concurrent.futures.ThreadPoolExecutor(8) as pool:  # beside generation
    answers = [pool.submit(client.completions.create, model=model, prompt="One two", max_tokens=32) for _ in range(4)]
    again = [pool.submit(embed, text) for text in texts]
    assert all(answer.result().choices[0].text is not None for answer in answers)
    for vector, future in zip(vectors, again):
        assert dot(vector, future.result().data[0].embedding) > 0.999

for arguments, param in (({"input": "x", "dimensions": 10**6}, "dimensions"), ({"input": []}, "input")):
    try:
        client.embeddings.create(model=model, **arguments)
    except openai.BadRequestError as caught:
        assert caught.param == param, caught.body
    else:
        raise AssertionError(f"no error for {arguments}")
print(f"python openai {openai.__version__}: embeddings of {len(vectors[0])} numbers")
