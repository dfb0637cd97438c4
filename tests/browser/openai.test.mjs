// The official OpenAI client against the server: the plain calls that applications make must work
// unchanged. What the answers hold is checked in tests/api/openai_test.c; here the client's own
// parsing, its error classes, its streams and its abort are the judge.
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import OpenAI from 'openai';
import { run, startServer, until } from './harness.mjs';

const folder = mkdtempSync(join(tmpdir(), 'slate-openai-'));
const keys = join(folder, 'keys');
writeFileSync(keys, 'key-of-a-user tenant-a user\nkey-for-metrics ops metrics\n', { mode: 0o600 });
const server = await startServer(['--max-tokens-limit=1000000']);
const locked = await startServer(['--api-keys', keys]);

// No retries: an error is to be seen, not waited out.
const client = new OpenAI({ baseURL: `${server.base}/v1`, apiKey: 'any', maxRetries: 0 });
const hi = [{ role: 'user', content: 'my name is Kate' }];
const model = 'slate-tiny';

async function metric(name) {
    const text = await (await fetch(`${server.base}/metrics`)).text();
    return Number(new RegExp(`^${name} (.*)$`, 'm').exec(text)[1]);
}

// The error that a promise is refused with.
async function refused(promise, kind) {
    try {
        await promise;
    } catch (e) {
        assert.ok(e instanceof kind, `${e?.constructor?.name}: ${e?.message}`);
        return e;
    }
    assert.fail(`it should have been refused with ${kind.name}`);
}

const tests = {
    async 'models'() {
        const ids = [];
        for await (const m of client.models.list())
            ids.push(m.id);
        assert.deepEqual(ids, [model]);
        assert.equal((await client.models.retrieve(model)).object, 'model');
        const e = await refused(client.models.retrieve('gpt-4'), OpenAI.NotFoundError);
        assert.equal(e.code, 'model_not_found');
    },

    async 'a completion'() {
        const { data, response } = await client.completions.create(
            { model, prompt: 'Once upon a time', max_tokens: 12, temperature: 0 }).withResponse();
        assert.equal(data.object, 'text_completion');
        assert.ok(data.choices[0].text.length > 8);
        assert.equal(data.usage.total_tokens,
                     data.usage.prompt_tokens + data.usage.completion_tokens);
        assert.equal(data._request_id, response.headers.get('x-request-id'));
    },

    async 'a completion as a stream'() {
        const ask = { model, prompt: 'Once upon a time', max_tokens: 24, temperature: 0 };
        const whole = await client.completions.create(ask);
        let text = '', finish = [];
        for await (const chunk of await client.completions.create({ ...ask, stream: true })) {
            text += chunk.choices[0].text;
            if (chunk.choices[0].finish_reason)
                finish.push(chunk.choices[0].finish_reason);
        }
        assert.equal(text, whole.choices[0].text);
        assert.deepEqual(finish, [whole.choices[0].finish_reason]);
    },

    async 'a chat completion'() {
        const r = await client.chat.completions.create(
            { model, messages: hi, max_completion_tokens: 30, temperature: 0 });
        assert.equal(r.choices[0].message.role, 'assistant');
        assert.ok(r.choices[0].message.content.length > 0);
        assert.ok(['stop', 'length'].includes(r.choices[0].finish_reason));
    },

    async 'a chat completion as a stream, with usage'() {
        const ask = { model, messages: hi, max_tokens: 30, temperature: 0 };
        const whole = await client.chat.completions.create(ask);
        let text = '', usage = null, chunks = 0;
        const stream = await client.chat.completions.create(
            { ...ask, stream: true, stream_options: { include_usage: true } });
        for await (const chunk of stream) {
            chunks++;
            assert.equal(usage, null, 'a chunk after the usage');
            text += chunk.choices[0]?.delta.content ?? '';
            usage = chunk.usage ?? null;
        }
        assert.ok(chunks > 3);
        assert.equal(text, whole.choices[0].message.content);
        assert.deepEqual(usage, whole.usage);
    },

    // The client's own assembly of a stream into a completion.
    async 'the stream helper'() {
        const ask = { model, messages: hi, max_tokens: 30, temperature: 0, logprobs: true,
                      top_logprobs: 2 };
        const whole = await client.chat.completions.create(ask);
        const stream = client.beta.chat.completions.stream(ask);
        let pieces = '';
        stream.on('content', (delta) => { pieces += delta; });
        const final = await stream.finalChatCompletion();
        assert.equal(pieces, whole.choices[0].message.content);
        assert.equal(final.choices[0].message.content, whole.choices[0].message.content);
        assert.deepEqual(final.choices[0].logprobs.content, whole.choices[0].logprobs.content);
    },

    async 'content parts, names, every usual parameter'() {
        const r = await client.chat.completions.create({
            model, n: 1, seed: 7, top_p: 0.9, temperature: 0.7, presence_penalty: 0.1,
            frequency_penalty: 0.1, stop: ['###'], user: 'me', max_tokens: 8, logit_bias: {},
            response_format: { type: 'text' }, tool_choice: 'none', store: false,
            messages: [
                { role: 'developer', content: [{ type: 'text', text: 'Be kind.' }] },
                { role: 'user', name: 'kate', content: [{ type: 'text', text: 'hi' }] },
                { role: 'assistant', content: null },
                { role: 'user', content: 'hi' },
            ],
        });
        assert.equal(r.choices.length, 1);
    },

    async 'errors are the client\'s classes'() {
        const chat = (fields) => client.chat.completions.create({ model, messages: hi, ...fields });
        let e = await refused(chat({ temperature: 'hot' }), OpenAI.BadRequestError);
        assert.deepEqual([e.status, e.code, e.param, e.type],
                         [400, 'invalid_type', 'temperature', 'invalid_request_error']);
        assert.match(e.message, /temperature/);
        assert.ok(e.request_id);
        e = await refused(chat({ model: 'gpt-4' }), OpenAI.NotFoundError);
        assert.equal(e.code, 'model_not_found');
        e = await refused(chat({ n: 2, stream: true }), OpenAI.BadRequestError);
        assert.equal(e.code, 'unsupported');
        e = await refused(chat({ session: 'nobody' }), OpenAI.NotFoundError);
        assert.equal(e.code, 'session_not_found');
    },

    async 'keys'() {
        const as = (apiKey) => new OpenAI({ baseURL: `${locked.base}/v1`, apiKey, maxRetries: 0 });
        let e = await refused(as('wrong-key-00').models.list(), OpenAI.AuthenticationError);
        assert.equal(e.code, 'invalid_api_key');
        e = await refused(as('key-for-metrics').models.list(), OpenAI.PermissionDeniedError);
        assert.equal(e.code, 'forbidden');
        assert.equal((await as('key-of-a-user').models.list()).data.length, 1);
    },

    // Slate's extra field; and what a client meets on a session that is busy.
    async 'sessions'() {
        const made = await client.post('/sessions', { body: { id: 'of-openai' } });
        assert.equal(made.id, 'of-openai');
        const ask = { model, session: 'of-openai', messages: hi, temperature: 0, max_tokens: 20 };
        await client.chat.completions.create(ask);
        const stream = await client.completions.create(
            { model, session: 'of-openai', prompt: 'a', max_tokens: 1000000, stream: true,
              ignore_eos: true });
        for await (const chunk of stream) {
            assert.ok(chunk.id);
            const e = await refused(client.chat.completions.create(ask), OpenAI.ConflictError);
            assert.equal(e.code, 'session_busy');
            break; // leaving the loop ends the request
        }
        await until('the session is free',
                    async () => !(await client.get('/sessions/of-openai')).busy);
        assert.equal((await client.get('/sessions/of-openai')).version, 1); // rolled back
    },

    async 'abort'() {
        const ask = { model, prompt: 'a', max_tokens: 1000000, ignore_eos: true };
        const idle = async () => await metric('slate_requests_running') === 0;
        let n = 0;
        const stream = await client.completions.create({ ...ask, stream: true });
        for await (const chunk of stream) {
            assert.ok(chunk.id);
            if (++n === 3)
                stream.controller.abort();
        }
        assert.ok(n >= 3);
        await until('the turn is over', idle);
        const controller = new AbortController();
        const whole = client.completions.create(ask, { signal: controller.signal });
        const seen = refused(whole, OpenAI.APIUserAbortError);
        await until('the turn runs', async () => !await idle());
        controller.abort();
        await seen;
        await until('the turn is over', idle);
    },
};

await run(Object.entries(tests));
await server.stop();
await locked.stop();
rmSync(folder, { recursive: true });
