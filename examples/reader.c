/* Plays a program of `chimera schedule export NAME --format program-json`, read from stdin. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Json { char *text; double number; struct Json *first, *next; } Json;
static char *at;

static Json *parse(void) { /* an object is a list of keys and values in turn */
    Json *value = calloc(1, sizeof *value), **end = &value->first;
    at += strspn(at, " \n,:");
    if (*at == '"') {
        value->text = ++at;
        at += strcspn(at, "\"");
        *at++ = 0;
    } else if (*at == '[' || *at == '{') {
        for (at++; at += strspn(at, " \n,:"), *at != ']' && *at != '}'; end = &(*end)->next) *end = parse();
        at++;
    } else if (strchr("tfn", *at)) {
        at += strcspn(at, " \n,]}");
    } else {
        value->number = strtod(at, &at);
    }
    return value;
}

static Json *get(Json *object, const char *name) {
    Json *key = object->first;
    while (strcmp(key->text, name)) key = key->next->next;
    return key->next;
}

static char *held; /* by worker and token */
static int n_tokens;

static void eat(int worker, int token) {
    if (!held[worker * n_tokens + token]--) {
        printf("worker %d has no token %d\n", worker, token);
        exit(1);
    }
}

int main(void) {
    static char file[1 << 22];
    file[fread(at = file, 1, sizeof file - 1, stdin)] = 0;
    Json *program = parse(), *next[64], *t;
    int depth = get(program, "depth")->number, n_done = 0, before = -1;
    for (t = get(program, "tokens")->first; t; t = t->next) n_tokens++;
    held = calloc(2 * depth * n_tokens, 1); /* what is on its way to a worker is behind what it has */
    char *coming = held + depth * n_tokens;
    for (t = get(program, "rows")->first; t; t = t->next)
        next[(int)get(t, "worker")->number] = get(t, "instructions")->first;
    while (n_done != before) {
        before = n_done;
        for (int w = 0; w < depth; w++)
            for (Json *step; (step = next[w]); next[w] = step->next, n_done++) {
                const char *what = get(step, "do")->text;
                if (!strcmp(what, "run")) {
                    for (Json *op = get(step, "ops")->first; op; op = op->next) {
                        for (t = get(op, "eats")->first; t; t = t->next) eat(w, t->number);
                        for (t = get(op, "makes")->first; t; t = t->next) held[w * n_tokens + (int)t->number] = 1;
                    }
                } else if (!strcmp(what, "send")) {
                    int token = get(step, "token")->number;
                    eat(w, token);
                    coming[(int)get(step, "to")->number * n_tokens + token] = 1;
                } else if (!strcmp(what, "recv")) {
                    int token = get(step, "token")->number;
                    if (!coming[w * n_tokens + token]) break; /* not yet: the others first */
                    held[w * n_tokens + token] = 1;
                } /* reduce, await, agree and step are between replicas */
            }
    }
    for (int w = 0; w < depth; w++)
        if (next[w]) return printf("worker %d waits for ever\n", w), 1;
    printf("%s: %d workers did %d instructions\n", get(program, "schedule")->text, depth, n_done);
    return 0;
}
