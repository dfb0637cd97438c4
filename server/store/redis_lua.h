/* redis_lua.h: the scripts that change Redis: each operation that must be atomic is one.
 *
 * Keys (no Redis Cluster: a script also reaches keys that it makes from these):
 *
 *     slate1:schema               string: the number of this form, SL_LUA_SCHEMA
 *     slate1:{TENANT/ID}          hash: the head, and the lease (below)
 *     slate1:{TENANT/ID}:t        list: the turns since the snapshot, oldest first: version (20
 *                                 digits), new tokens (10), XXH3-64 (16 hex), payload (record.h)
 *     slate1:{TENANT/ID}:a        list: the last four answers: version, XXH3-64, payload
 *     slate1:{TENANT/ID}:k        list: earlier snapshots that are kept to rewind to, oldest first:
 *                                 version, N (-: none, the session was empty), bytes, XXH3-128,
 *                                 tokens seen, used at
 *     slate1:{TENANT/ID}:o        list: the turns since those, up to the snapshot, that are kept
 *     slate1:{TENANT/ID}:c        hash: names of checkpoints and the versions that they stand for
 *     slate1:{TENANT/ID}:s:N      string: a snapshot's bytes. N is new for every write; which of
 *                                 them count stands in the head and in the list above, the others
 *                                 end by themselves
 *     slate1:all                  sorted set: TENANT/ID by the time of its end (+inf: never)
 *     slate1:ids:TENANT           sorted set of ids, for lists: all of one score
 *     slate1:use                  hash: TENANT and the bytes of its sessions, as its quota counts
 *     slate1:kept                 string: of them those of what is kept besides states, of all
 *                                 tenants
 *     slate1:asked:NODE           set: what other servers ask of that one's turns: "cancel FENCE
 *                                 TENANT/ID", or "pause …"; ends by itself
 *
 * The hash: inc (incarnation, hex), ver, tok (tokens seen), cre, use, ttl (s), meta; sv, sn, sz, sd
 * (the snapshot's version, N, bytes, XXH3-128), st, su (tokens seen and used at, then); rt (tokens
 * of the turns since); op (the stamp of this version, store.h: which commit made it), ops (of the
 * last eight versions VERSION=STAMP each, as far as servers wrote them that know stamps); fen (the
 * last fence given), lh (who holds the lease: node:call, of a turn node:call:t), lu (until when, ms
 * of Redis' clock), lk (the Idempotency-Key of its turn); al (the sizes of the answers), by (the
 * bytes that it counts with), kb (of them those of earlier snapshots), cn (how many checkpoints
 * have names), kc (the bytes that it counts with in slate1:kept), of (turns in :o may have to go).
 * Versions have 20 digits, so that texts compare as numbers do: Lua's numbers end at 2^53.
 *
 * Quotas of sessions and bytes are kept by the scripts that add to them: they count over all
 * servers, and nothing comes between the question and the count. A session that is over its time to
 * live is none for whoever asks; its keys are removed by a sweep of any server, or by the script
 * that finds a quota used up. They are not given to Redis' own expiry, which cannot keep away from
 * a session whose turn runs, and would take a session's keys one by one, and none of its counts.
 *
 * A change that earlier versions of Slate would not understand, or would undo, gets the next
 * number: they refuse such a store by it, at the start and at every connection. Who makes one reads
 * the form before it too, and writes the new number only when told to (all servers of the fleet are
 * of the new version then).
 *
 * Form 2 is form 1 and names of checkpoints, which a server of form 1 would drop. So the script
 * that gives the first name is who writes that number: all servers are to be of this version by
 * then.
 *
 * All scripts may be repeated: a call whose answer was lost is made again as it was, and gives what
 * it gave. But where others were at the session between, it may be refused (none, other, exists,
 * version, fence, busy) although it was done the first time: a commit that is repeated and told one
 * of these is not known about (redis_reply.c). Under maxmemory a script's first write is of a kind
 * that Redis refuses then (OOM), or all of its writes free memory: nothing is half done.
 *
 * The answer is an array, its first element a word: ok, none (no such session), other (another
 * incarnation), exists, version (and which it is at), stamp (another version of that number),
 * fence, busy, full, quota (which, how much is used and may be), missing; of names: named (of which
 * version it is), names (how many there may be), unnamed, unkept (the version is not there). */
#ifndef SLATE_SERVER_STORE_REDIS_LUA_H
#define SLATE_SERVER_STORE_REDIS_LUA_H

enum sl_rd_script {
    SL_LUA_LOOK,
    SL_LUA_TAKE,
    SL_LUA_RENEW,
    SL_LUA_RELEASE,
    SL_LUA_DISOWN,
    SL_LUA_HEAD,
    SL_LUA_TURN,
    SL_LUA_PIECE,
    SL_LUA_SNAP,
    SL_LUA_NAME,
    SL_LUA_UNNAME,
    SL_LUA_REMOVE,
    SL_LUA_LOAD,
    SL_LUA_LIST,
    SL_LUA_SWEEP,
    SL_LUA_ASK,
    SL_LUA_ASKED,
    SL_LUA_N
};

enum { SL_LUA_SCHEMA = 2 /* the latest that is known */, SL_LUA_SCHEMA_NEW = 1 };

/* Each begins with KEYS H, T, A, ALL, IDS and ARGV tenant, id. */
extern const char *const sl_lua_scripts[SL_LUA_N];

#endif
