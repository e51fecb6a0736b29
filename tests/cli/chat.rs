//! Chats: `prepare --chat`, training on their answers, and `generate --chat`.

use std::fs::{read, write};

use super::prepare::{refuse, succeed};
use crate::command::folder;

const TEMPLATE: &str = "{% for message in messages %}
{{ '<' + message['role'] + '>' + message.content.strip() + '.' }}
{%- endfor %}
{% if add_generation_prompt %}
<assistant>{% endif %}";
const CHATS: &str = "{\"messages\": [{\"role\": \"user\", \"content\": \"one \"}, {\"role\": \"assistant\", \"content\": \"two\"}]}

{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}, \
{\"role\": \"user\", \"content\": \"c\"}, {\"role\": \"assistant\", \"content\": \"d\"}]}\n";

/// The bytes of prepared chats are their tokens.
#[test]
fn only_answers_are_targets() {
    let folder = folder();
    let place = folder.path().display();
    write(folder.path().join("chats.jsonl"), CHATS).expect("a file");
    let marked = TEMPLATE.replace(
        "{{ '<'",
        "{% if message.role == 'assistant' %}\n<assistant>{% generation %}{{ message.content.strip() + '.' }}\
         {% endgeneration %}\n{% else %}\n{{ '<'",
    );
    let marked = marked.replace("{%- endfor %}", "{%- endif %}\n{%- endfor %}");
    for (name, template) in [("by-messages", TEMPLATE), ("by-marks", &marked)] {
        let file = folder.path().join(format!("{name}.jinja"));
        write(&file, template).expect("a file");
        let data = format!("{place}/{name}.bin");
        succeed(&format!(
            "prepare {place}/chats.jsonl --chat --chat-template {} --out {data}",
            file.display()
        ));
        let ids = read(&data).expect("ids");
        let text: String = ids.chunks(2).map(|id| char::from(id[0])).collect();
        assert_eq!(
            text, "<user>one.<assistant>two.<user>a.<assistant>b.<user>c.<assistant>d.",
            "{name}"
        );
        let targets = read(format!("{data}.targets")).expect("marks of targets");
        let answers = text.chars().zip(&targets).filter(|(_, is_target)| **is_target == 1);
        assert_eq!(
            answers.map(|(character, _)| character).collect::<String>(),
            "two.b.d.",
            "{name}"
        );
    }

    // The model learns them, and answers when it is asked in the same way.
    let train = "train --layers 2 --depth 2 --hidden 32 --heads 2 --context 32 --threads 1 --steps 60 --lr 0.02";
    let data = format!("--data {place}/by-marks.bin --validation-data {place}/by-marks.bin");
    succeed(&format!("{train} {data} --sequence 16 --out {place}/run"));
    let ask = format!(
        "generate --model {place}/run --prompt one --tokens 4 --temperature 0 --tokenizer bytes"
    );
    let answered = succeed(&format!("{ask} --chat --chat-template {place}/by-marks.jinja"));
    assert_eq!(answered.stdout.trim_end(), "<user>one.<assistant>two.");
    refuse(
        &format!("{ask} --chat"),
        "chats need a template: name its file by --chat-template",
        folder.path(),
    );
}

#[test]
fn what_is_no_chat_is_refused_by_its_line() {
    let folder = folder();
    let here = folder.path();
    let place = here.display();
    let line = |content: &str| {
        format!("{{\"messages\": [{{\"role\": \"user\", \"content\": \"{content}\"}}]}}\n")
    };
    let write_to = |name: &str, text: &str| write(here.join(name), text).expect("a file");
    write_to("good.jsonl", CHATS);
    write_to("text.txt", "text");
    write_to("t.jinja", TEMPLATE);
    let prepare = format!("prepare --chat --out {place}/x.bin");
    refuse(&format!("{prepare} {place}/good.jsonl"), "chats need a template", here);
    let with = format!("{prepare} --chat-template {place}/t.jinja");
    refuse(&format!("{with} {place}/text.txt"), "text.txt is no file of chats", here);
    refuse(
        &format!("{prepare} --chat-template {place}/no.jinja {place}/good.jsonl"),
        "no.jinja does not exist",
        here,
    );
    write_to("bad.jsonl", &format!("{}{{\"text\": \"a\"}}\n", line("a")));
    refuse(&format!("{with} {place}/bad.jsonl"), "line 2 of ", here);
    write_to("bad.jsonl", "[[{\"role\": \"user\", \"content\": \"a\"}]]\n");
    refuse(&format!("{with} {place}/bad.jsonl"), "no JSON object", here);
    for (template, hint) in [
        ("{{ raise_exception('roles must alternate') }}", "line 1 of "),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        (
            "{% for a in range(90000) %}{% for b in range(90000) %}x{% endfor %}{% endfor %}",
            "the template does not end",
        ),
        ("\n{% if %}", "in line 2 of the template"),
        ("{{ messages | length }}", "the texts have only tokens of prompts"),
    ] {
        write_to("bad.jinja", template);
        write_to("one.jsonl", &line("a"));
        refuse(
            &format!("{prepare} --chat-template {place}/bad.jinja {place}/one.jsonl"),
            hint,
            here,
        );
    }
    write_to(
        "bad.jinja",
        "{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}",
    );
    let hint = "its template writes message 2 otherwise once others follow";
    refuse(&format!("{prepare} --chat-template {place}/bad.jinja {place}/good.jsonl"), hint, here);
}
