# SPDX-License-Identifier: MIT
"""Chat templates as kvick runs them beside Python's Jinja2, which transformers uses.

    python3 benchmarks/peers/chat_templates.py KVICK_TOKENIZE TEMPLATE.jinja...

Writes each template into a GGUF vocabulary and compares the text of six conversations. Needs
python3-jinja2. A template that Jinja2 cannot run without tools or variables of its own is to be
refused; a system message that it leaves out or refuses stands with the user's in kvick's text.
"""
import datetime, json, re, struct, subprocess, sys, tempfile
import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

def S(content): return {"role": "system", "content": content}
def U(content): return {"role": "user", "content": content}
def A(content): return {"role": "assistant", "content": content}


CONVERSATIONS = [
    [U("Hi")], [S("Be brief."), U("Hi")], [U("Hi"), A("Hello!"), U("Bye")],
    [S("Be brief."), U("Hi"), A("Hello!"), U("Bye"), A("So long."), U("Again")],
    [S(" s \n"), U(" a \n b\t"), A(" c \n"), U("\nd ")],
    [U("Hi"), A("<think>\nhm\n</think>\n\nHello!"), U("Bye")],
]


def text(s): return struct.pack("<Q", len(s.encode())) + s.encode()
def string(s): return struct.pack("<I", 8) + text(s)
def u32(n): return struct.pack("<II", 4, n)
def array(kind, items): return struct.pack("<IIQ", 9, kind, len(items)) + b"".join(items)


def write_vocabulary(path, template):
    values = {
        "tokenizer.ggml.model": string("gpt2"), "tokenizer.ggml.pre": string("gpt-2"),
        "tokenizer.ggml.tokens": array(8, [text("<BOS>"), text("<EOS>")]),
        "tokenizer.ggml.token_type": array(5, [struct.pack("<i", 3)] * 2),
        "tokenizer.ggml.bos_token_id": u32(0), "tokenizer.ggml.eos_token_id": u32(1),
        "tokenizer.chat_template": string(template),
    }
    with open(path, "wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, 0, len(values)))
        for key, value in values.items():
            file.write(text(key) + value)


def raise_exception(message): raise jinja2.exceptions.TemplateError(message)


def make_environment():
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols])
    environment.filters["tojson"] = lambda x, ensure_ascii=False, indent=None: json.dumps(
        x, ensure_ascii=ensure_ascii, indent=indent)
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = datetime.datetime(2024, 7, 26).strftime
    return environment


def expected(environment, source, messages):
    # Marks for training, which Jinja2 itself does not know.
    source = re.sub(r"\{%([-+]?)\s*generation\s*([-+]?)%\}", r"{%\1 if true \2%}", source)
    source = re.sub(r"\{%([-+]?)\s*endgeneration\s*([-+]?)%\}", r"{%\1 endif \2%}", source)
    try:
        return environment.from_string(source).render(
            messages=messages, add_generation_prompt=True, bos_token="<BOS>", eos_token="<EOS>",
            tools=None, documents=None)
    except Exception:  # of any kind: what a template does not accept
        return None


def main():
    program, paths = sys.argv[1], sys.argv[2:]
    environment = make_environment()
    equal, refused, folded, wrong = 0, [], [], []
    with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
        for path in paths:
            source = open(path).read()
            write_vocabulary(file.name, source)
            wants = [expected(environment, source, messages) for messages in CONVERSATIONS]
            verdict = "equal"
            for messages, want in zip(CONVERSATIONS, wants):
                run = subprocess.run([program, "-m", file.name, "--chat", "--text"], input=json.dumps(messages).encode(),
                                     capture_output=True)
                got = run.stdout.decode()[:-1] if run.returncode == 0 else None
                if got == want:
                    continue
                loses_system = messages[0]["role"] == "system" and (
                    want is None or messages[0]["content"].strip() not in want)
                verdict = verdict if loses_system and got is not None else "wrong"
                if verdict != "wrong" and path not in folded:
                    folded.append(path)
            if all(want is None for want in wants):
                refused.append(path)
            elif verdict == "wrong":
                wrong.append(path)
            else:
                equal += 1
    print(f"{len(paths)} templates: {equal} equal ({len(folded)} of them without a place for a system message), "
          f"{len(refused)} that neither can run without more, {len(wrong)} wrong")
    for path in wrong:
        print("wrong:", path)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
