// Holds every response that the API tests have received (see tests/support/client.h) to
// proto/openapi.yaml: path, method, status, content type, headers and schema must be declared, what
// is declared as required must be there, and every declared operation must have been seen to
// succeed. Requests that were granted must be valid as well: the contract may not ask for more than
// the server does.
import assert from 'node:assert/strict';
import { readFileSync, readdirSync } from 'node:fs';
import Ajv from 'ajv/dist/2020.js';
import addFormats from 'ajv-formats';
import { parse } from 'yaml';
import { run } from './harness.mjs';

const [contract, folder] = process.argv.slice(2);
const api = parse(readFileSync(contract, 'utf8'));
const methods = ['get', 'put', 'post', 'delete', 'options', 'head', 'patch', 'trace'];
// Headers that HTTP itself has; all others must be declared.
const ofHttp = new Set(['content-type', 'content-length', 'transfer-encoding', 'connection', 'date',
                        'keep-alive', 'vary', 'server']);
const shown = 12; // faults of one operation that are printed

const ajv = new Ajv({ strict: true, strictTypes: false, allErrors: false });
addFormats(ajv);
ajv.addVocabulary(Object.keys(api)); // what the document has beside schemas
ajv.addSchema({ $id: 'api', ...api });

const escape = (s) => s.replaceAll('~', '~0').replaceAll('/', '~1');
const at = (pointer) => pointer.slice(2).split('/').reduce(
    (v, key) => v?.[key.replaceAll('~1', '/').replaceAll('~0', '~')], api);

// A part of the document and where it stands, $ref followed.
function follow(pointer) {
    for (;;) {
        const v = at(pointer);
        assert.notEqual(v, undefined, `${pointer} is not in the document`);
        if (typeof v !== 'object' || typeof v.$ref !== 'string')
            return [v, pointer];
        pointer = v.$ref;
    }
}

// Compiled once per place: a schema's pointer -> its validating function.
const compiled = new Map();
function validator(pointer) {
    if (!compiled.has(pointer))
        compiled.set(pointer, ajv.compile({ $ref: `api${encodeURI(pointer)}` }));
    return compiled.get(pointer);
}

function check(pointer, value, what) {
    const valid = validator(pointer);
    assert.ok(valid(value), `${what}: ${ajv.errorsText(valid.errors, { separator: '; ' })}: ` +
        JSON.stringify(value)?.slice(0, 400));
}

// --- the operations ------------------------------------------------------------------------------

const operations = []; // {name, path, method, segments, pointer, records}
for (const path of Object.keys(api.paths))
    for (const method of methods)
        if (api.paths[path][method])
            operations.push({ name: `${method.toUpperCase()} ${path}`, path, method,
                              segments: path.split('/'), records: [],
                              pointer: `#/paths/${escape(path)}/${method}` });

const isParameter = (segment) => /^\{.*\}$/.test(segment);

// The declared path of a request; a literal segment wins over a parameter.
function pathOf(target) {
    const parts = target.split('?')[0].split('/');
    let best = null;
    for (const { path, segments } of operations) {
        const fits = segments.length === parts.length && segments.every((s, i) =>
            isParameter(s) ? parts[i] !== '' : s === decode(parts[i]));
        if (fits && (best === null || best.includes('{')))
            best = path;
    }
    return best;
}

function decode(segment) {
    try {
        return decodeURIComponent(segment);
    } catch {
        return segment;
    }
}

// --- one response --------------------------------------------------------------------------------

function checkHeaders(declared, record, what) {
    const sent = new Map();
    for (const [name, value] of record.headers) {
        const key = name.toLowerCase();
        assert.ok(!sent.has(key), `${what}: the header ${name} twice`);
        sent.set(key, value);
    }
    for (const [name, pointer] of declared) {
        const [header] = follow(pointer);
        const value = sent.get(name.toLowerCase());
        assert.ok(value !== undefined || !header.required, `${what}: no header ${name}`);
        if (value !== undefined)
            check(`${follow(pointer)[1]}/schema`, value, `${what}: header ${name}`);
        sent.delete(name.toLowerCase());
    }
    for (const name of sent.keys())
        assert.ok(ofHttp.has(name) || name.startsWith('access-control-'),
                  `${what}: the header ${name} is not declared`);
}

// data: lines until [DONE], or an error and then nothing.
function checkEvents(pointer, record, what) {
    const events = record.body.split('\n\n');
    if (record.whole)
        assert.equal(events.at(-1), '', `${what}: the stream ends inside an event`);
    events.pop();
    const data = events.filter((e) => !e.startsWith(':'));
    for (const [i, event] of data.entries()) {
        assert.ok(event.startsWith('data: '), `${what}: event ${event}`);
        if (event === 'data: [DONE]') {
            assert.equal(i, data.length - 1, `${what}: [DONE] is not the last`);
            return;
        }
        const value = JSON.parse(event.slice(6));
        check(pointer, value, `${what}: event ${i}`);
        if (value.error) {
            assert.equal(i, data.length - 1, `${what}: an event after an error`);
            return;
        }
    }
    assert.ok(!record.whole, `${what}: neither [DONE] nor an error at the end`);
}

function checkBody(response, pointer, record, what) {
    const types = Object.keys(response.content ?? {});
    const sent = record.headers.find(([name]) => name.toLowerCase() === 'content-type')?.[1];
    const type = sent?.split(';')[0].trim();
    if (types.length === 0) {
        assert.equal(record.body, '', `${what}: a body that is not declared`);
        return;
    }
    assert.ok(types.includes(type), `${what}: the content type ${sent} is not declared`);
    const place = `${pointer}/content/${escape(type)}`;
    if (record.method === 'HEAD')
        assert.equal(record.body, '', `${what}: a body`);
    else if (type === 'text/event-stream')
        checkEvents(`${place}/x-event`, record, what);
    else if (record.whole)
        check(`${place}/schema`, record.body, what);
}

function checkResponse(pointer, record) {
    const what = `${record.test}: ${record.method} ${record.path} ${record.status}`;
    const [response, place] = follow(pointer);
    checkHeaders(Object.keys(response.headers ?? {}).map(
        (name) => [name, `${place}/headers/${escape(name)}`]), record, what);
    checkBody(response, place, record, what);
}

function checkRequest(operation, record) {
    if (record.status >= 300 || record.request === null || !at(`${operation.pointer}/requestBody`))
        return; // refused, none, or not read
    const what = `${record.test}: the granted request ${record.method} ${record.path}`;
    const place = `${operation.pointer}/requestBody/content/application~1json/schema`;
    check(place, record.request, what);
}

// --- all of them ---------------------------------------------------------------------------------

function read() {
    const records = [];
    for (const file of readdirSync(folder).filter((f) => f.endsWith('.jsonl')))
        for (const line of readFileSync(`${folder}/${file}`, 'utf8').split('\n'))
            if (line)
                records.push(JSON.parse(line));
    assert.ok(records.length > 0, `${folder} holds no records; run the API tests first`);
    return records;
}

// What has no operation to belong to: a path that is none, or a method that a path does not take.
const strays = [];
for (const record of read()) {
    const path = pathOf(record.path);
    const method = record.method === 'HEAD' ? 'get' : record.method.toLowerCase();
    const operation = operations.find((o) => o.path === path && o.method === method);
    if (operation)
        operation.records.push(record);
    else
        strays.push([record, path !== null]);
}

function all(items, checkOne) {
    const faults = [];
    for (const item of items) {
        try {
            checkOne(item);
        } catch (e) {
            if (!(e instanceof assert.AssertionError))
                throw e;
            faults.push(e.message);
        }
    }
    assert.equal(faults.length, 0, `${faults.length} of ${items.length} fail:\n  ` +
        [...new Set(faults)].slice(0, shown).join('\n  '));
}

const tests = [
    ['every schema of the document compiles', async () => {
        for (const name of Object.keys(api.components.schemas))
            validator(`#/components/schemas/${name}`);
        for (const { pointer } of operations)
            for (const status of Object.keys(at(`${pointer}/responses`)))
                for (const [response, place] of [follow(`${pointer}/responses/${status}`)])
                    for (const type of Object.keys(response.content ?? {}))
                        validator(`${place}/content/${escape(type)}/schema`);
    }],
    ['responses of no operation', async () => all(strays, ([record, known]) => {
        const what = `${record.test}: ${record.method} ${record.path} ${record.status}`;
        if (record.method === 'OPTIONS' && record.status === 204)
            return;
        const general = { 404: 'NotFound', 405: 'MethodNotAllowed', 400: 'BadRequest',
                          401: 'Unauthorized', 403: 'Forbidden', 408: 'RequestTimeout',
                          413: 'TooLarge', 414: 'UriTooLong', 417: 'ExpectationFailed',
                          431: 'HeadersTooLarge', 503: 'Unavailable' }[record.status];
        assert.ok(general && (record.status !== 404 || !known) && (record.status !== 405 || known),
                  `${what}: not declared`);
        checkResponse(`#/components/responses/${general}`, record);
    })],
    ...operations.map((operation) => [operation.name, async () => {
        const responses = at(`${operation.pointer}/responses`);
        assert.ok(operation.records.some((r) => r.status < 300), 'never seen to succeed');
        all(operation.records, (record) => {
            assert.ok(responses[record.status] ?? responses.default,
                      `${record.test}: ${record.method} ${record.path}: ${record.status} is not ` +
                      'declared');
            checkResponse(`${operation.pointer}/responses/${record.status}`, record);
            checkRequest(operation, record);
        });
    }]),
];
await run(tests);
console.log(`${operations.reduce((n, o) => n + o.records.length, strays.length)} responses`);
for (const { name, pointer, records } of operations) {
    const unseen = Object.keys(at(`${pointer}/responses`)).filter(
        (status) => !records.some((r) => String(r.status) === status));
    console.log(`declared and not met by these tests: ${name}: ${unseen.join(' ')}`);
}
