// What the suites in Node share: tests with cmocka's lines, which tests/run.sh counts, and servers.
import { spawn } from 'node:child_process';

const deadlineMs = 60000;

// Runs the tests one after the other; exit code 1 when one failed.
export async function run(tests) {
    let passed = 0, failed = 0;
    console.log(`[==========] Running ${tests.length} test(s).`);
    for (const [name, test] of tests) {
        console.log(`[ RUN      ] ${name}`);
        try {
            await within(test(), name);
            passed++;
            console.log(`[       OK ] ${name}`);
        } catch (e) {
            failed++;
            console.log(`[  ERROR   ] --- ${e?.stack ?? e}`);
            console.log(`[  FAILED  ] ${name}`);
        }
    }
    console.log(`[  PASSED  ] ${passed} test(s).`);
    if (failed)
        console.log(`[  FAILED  ] ${failed} test(s).`);
    process.exitCode = failed ? 1 : 0;
}

// A promise, or an error when it takes too long.
function within(promise, what) {
    let timer;
    const late = new Promise((_, no) => {
        timer = setTimeout(() => no(new Error(`${what}: nothing for ${deadlineMs} ms`)), deadlineMs);
    });
    return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

// `slate serve` on a free port; resolves to {base, stop} once it is ready.
export async function startServer(options = []) {
    const build = process.env.SLATE_BUILD ?? 'build/release';
    const child = spawn(`${build}/slate`,
                        ['serve', '--listen=127.0.0.1:0', '--store=memory', '--log-level=warn', ...options],
                        { stdio: ['ignore', 'pipe', 'inherit'] });
    process.on('exit', () => child.kill('SIGKILL'));
    const ended = new Promise((yes) => child.on('exit', (code, signal) => yes(code ?? signal)));
    let text = '';
    const port = await within(new Promise((yes, no) => {
        child.on('error', no);
        ended.then((code) => no(new Error(`the server ended with ${code}`)));
        child.stdout.on('data', (bytes) => {
            const m = /listening on http:\/\/127\.0\.0\.1:(\d+)\n/.exec(text += bytes);
            if (m)
                yes(m[1]);
        });
    }), 'the start of the server');
    const base = `http://127.0.0.1:${port}`;
    await until('the server is ready', async () => (await fetch(`${base}/readyz`)).status === 200);
    const stop = async () => {
        child.kill('SIGTERM');
        const code = await within(ended, 'the end of the server');
        if (code !== 0)
            throw new Error(`the server ended with ${code}`);
    };
    return { base, stop };
}

// Asks again until it is so.
export async function until(what, isSo) {
    const end = Date.now() + deadlineMs;
    while (!await isSo())
        if (Date.now() > end)
            throw new Error(`never: ${what}`);
}
