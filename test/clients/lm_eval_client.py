"""What a user of lm-eval does, checked: likelihoods of choices by token ids, texts, chats. Arguments: base URL with /v1, API key."""

import importlib.metadata
import json
import os
import pathlib
import sys
import tempfile

folder = pathlib.Path(tempfile.mkdtemp())
os.environ.update(OPENAI_API_KEY=sys.argv[2], HF_HOME=str(folder), HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
import lm_eval
import lm_eval.tasks
import openai

client = openai.OpenAI(base_url=sys.argv[1], api_key=sys.argv[2])
model = client.models.list().data[0].id
questions = [("What is 60 - 55?", ["5", "17", "444"]), ("Compute 57 - 11", ["91", "46"]), ("What is 2 + 2?", ["4", "30"])]
(folder / "questions.jsonl").write_text("".join(
    json.dumps({"question": question, "choices": choices, "answer": choices[0]}) + "\n" for question, choices in questions))
common = f"""
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/questions.jsonl}}}}
test_split: test
"""
(folder / "choose.yaml").write_text(common + """
task: choose
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_target: 0
doc_to_choice: "{{choices}}"
metric_list: [{metric: acc}]
""")
(folder / "answer.yaml").write_text(common + """
task: answer
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["###"], max_gen_toks: 256, temperature: 0}
metric_list: [{metric: exact_match}]
""")
manager = lm_eval.tasks.TaskManager(include_path=str(folder), include_defaults=False)


def evaluate(kind, path, tasks, **more):
    arguments = {"model": model, "base_url": sys.argv[1] + path, "max_length": 512, "max_retries": 1, **more}
    results = lm_eval.simple_evaluate(model=kind, model_args=arguments, tasks=tasks, task_manager=manager, bootstrap_iters=0,
                                      apply_chat_template=kind == "local-chat-completions")
    return {task: [sample["filtered_resps"] for sample in sorted(results["samples"][task], key=lambda each: each["doc_id"])]
            for task in tasks}


# The server's tokenizer, prompts as token ids, several of them in a request; likelihoods against those of plain requests.
found = evaluate("local-completions", "/completions", ["choose", "answer"], tokenizer_backend="remote", batch_size=3, num_concurrent=2)
for (question, choices), likelihoods, text in zip(questions, found["choose"], found["answer"], strict=True):
    for choice, (likelihood, _) in zip(choices, likelihoods, strict=True):
        plain = [client.completions.create(model=model, prompt=prompt, max_tokens=1, temperature=0, logprobs=1, echo=True).choices[0]
                 for prompt in (question + " " + choice, question)]
        expected = sum(plain[0].logprobs.token_logprobs[len(plain[1].logprobs.tokens) - 1:-1])
        assert abs(likelihood - expected) < 1e-3, (question, choice, likelihood, expected)
    expected = client.completions.create(model=model, prompt=question, max_tokens=256, temperature=0, stop=["###"]).choices[0].text
    assert text == [expected], (question, text, expected)

chats = evaluate("local-chat-completions", "/chat/completions", ["answer"], num_concurrent=2)["answer"]
for (question, _), text in zip(questions, chats, strict=True):
    expected = client.chat.completions.create(model=model, messages=[{"role": "user", "content": question}], max_tokens=256,
                                              temperature=0, stop=["###"]).choices[0].message.content
    assert text == [expected], (question, text, expected)
assert chats[0] == ["5"], chats
print(f"python lm-eval {importlib.metadata.version('lm_eval')}: {found['choose'][0]} {chats[0]}")
