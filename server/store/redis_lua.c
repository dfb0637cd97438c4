/* redis_lua.c: see redis_lua.h. */
#include "server/store/redis_lua.h"

/* clang-format off */

/* What all begin with. head(): the hash by names, '' where there is none; nil: no session. */
#define BEGIN                                                                                      \
    "local H,T,A,ALL,IDS=KEYS[1],KEYS[2],KEYS[3],KEYS[4],KEYS[5]\n"                                \
    "local call=redis.call\n"                                                                      \
    "local time=call('TIME')\n"                                                                    \
    "local now=tonumber(time[1])\n"                                                                \
    "local ms=now*1000+math.floor(tonumber(time[2])/1000)\n"                                       \
    "local N={'inc','ver','tok','cre','use','ttl','meta','sv','rt','fen','lk','sn','sz','sd','op','lh','lu','ll','st','su','by','al','kb','cn','of','kc'}\n" \
    "local K,O,C=H..':k',H..':o',H..':c'\n"                                                        \
    "local function number(kept) return string.match(kept,'^%d+ (%S+) ') or '' end\n"              \
    "local function is_kept(n)\n"                                                                  \
    " for _,x in ipairs(call('LRANGE',K,0,-1)) do\n"                                               \
    "  if number(x)==n then return true end\n"                                                     \
    " end\n"                                                                                       \
    " return false\n"                                                                              \
    "end\n"                                                                                        \
    "local function head(h)\n"                                                                     \
    " local v=call('HMGET',h,unpack(N))\n"                                                         \
    " if not v[1] then return nil end\n"                                                           \
    " local g={}\n"                                                                                \
    " for i,n in ipairs(N) do g[n]=v[i] or '' end\n"                                               \
    " return g\n"                                                                                  \
    "end\n"                                                                                        \
    /* A lease that has longer to go than it was given for is of a clock that was set back. */      \
    /* (One of an earlier version does not say: ten minutes are the most that there are.) */        \
    "local function held(g)\n"                                                                     \
    " local left=(tonumber(g.lu) or 0)-ms\n"                                                       \
    " return g.lh~='' and left>0 and left<=(tonumber(g.ll) or 600000)\n"                           \
    "end\n"                                                                                        \
    "local function gone(g)\n"                                                                     \
    " return g.ttl~='0' and tonumber(g.use)+tonumber(g.ttl)<now and not held(g)\n"                 \
    "end\n"                                                                                        \
    "local function view(g)\n"                                                                     \
    " return {'ok',ms,g.inc,g.ver,g.tok,g.cre,g.use,g.ttl,g.meta,g.sv,g.rt,g.fen,g.lk,held(g) and 1 or 0,tonumber(g.kb) or 0,tonumber(g.cn) or 0,g.op}\n" \
    "end\n"                                                                                        \
    "local function ends(use,ttl)\n"                                                               \
    " return ttl=='0' and '+inf' or string.format('%.0f',tonumber(use)+tonumber(ttl)+1)\n"         \
    "end\n"                                                                                        \
    "local USE='slate1:use'\n"                                                                     \
    "local function digits(n) return string.format('%.0f',n) end\n"                                \
    "local function add_kept(n)\n"                                                                 \
    " if n~=0 and call('INCRBY','slate1:kept',digits(n))<=0 then call('UNLINK','slate1:kept') end\n" \
    "end\n"                                                                                        \
    "local function wipe(h,ids,tenant,id)\n"                                                       \
    " local v=call('HMGET',h,'sn','by','kc')\n"                                                    \
    " local by,kc=tonumber(v[2] or '0'),tonumber(v[3] or '0')\n"                                   \
    " for _,x in ipairs(call('LRANGE',h..':k',0,-1)) do call('UNLINK',h..':s:'..number(x)) end\n"  \
    " call('UNLINK',h,h..':t',h..':a',h..':k',h..':o',h..':c')\n"                                  \
    " if v[1] then call('UNLINK',h..':s:'..v[1]) end\n"                                            \
    " call('ZREM',ALL,tenant..'/'..id)\n"                                                          \
    " call('ZREM',ids,id)\n"                                                                       \
    " if by>0 and call('HINCRBY',USE,tenant,digits(-by))<=0 then call('HDEL',USE,tenant) end\n"    \
    " add_kept(-kc)\n"                                                                             \
    "end\n"                                                                                        \
    /* Up to so many that have expired, but never the one that the script is about: how many there */ \
    /* were, and how many were looked at. */                                                       \
    "local function sweep(most)\n"                                                                 \
    " local n,names=0,call('ZRANGEBYSCORE',ALL,'-inf',now,'LIMIT',0,most)\n"                       \
    " for _,name in ipairs(names) do\n"                                                            \
    "  local tenant,id=string.match(name,'^([^/]*)/(.*)$')\n"                                      \
    "  local h='slate1:{'..name..'}'\n"                                                            \
    "  local g=head(h)\n"                                                                          \
    "  if g and not gone(g) then\n"                                                                \
    "   call('ZADD',ALL,held(g) and math.ceil(tonumber(g.lu)/1000) or ends(g.use,g.ttl),name)\n"   \
    "  elseif tenant and name~=ARGV[1]..'/'..ARGV[2] then\n"                                       \
    "   wipe(h,'slate1:ids:'..tenant,tenant,id)\n"                                                 \
    "   n=n+1\n"                                                                                   \
    "  end\n"                                                                                      \
    " end\n"                                                                                       \
    " return n,#names\n"                                                                           \
    "end\n"                                                                                        \
    "local function listed(use,ttl)\n"                                                             \
    " call('ZADD',ALL,ends(use,ttl),ARGV[1]..'/'..ARGV[2])\n"                                      \
    "end\n"                                                                                        \
    /* May a holder of this fence change it? A lease that ran out and was not taken still counts: */ \
    /* nobody has done anything since. One that was given back does not: its holder has given up */ \
    /* what comes late. Without a fence only what nobody holds is changed. */                      \
    "local function fenced(g,fence)\n"                                                             \
    " if fence=='0' then return held(g) and {'busy',ms,g.lk} end\n"                                \
    " return (g.fen~=fence or g.lh=='') and {'fence'}\n"                                           \
    "end\n"

/* What is kept to rewind to. first: the oldest version that is to stay within reach, ''  where none
 * is; ver: of the snapshot. named(): the last version with a name in a range. prune(): index.c's
 * rule, true where snapshots went; all: turns may have to go without that. */
#define KEPT                                                                                       \
    "local NAMED\n"                                                                                \
    "local function named(from,to)\n"                                                              \
    " if not NAMED then NAMED=call('HVALS',C) end\n"                                               \
    " local last\n"                                                                                \
    " for _,v in ipairs(NAMED) do\n"                                                               \
    "  if v>=from and v<to and (not last or v>last) then last=v end\n"                             \
    " end\n"                                                                                       \
    " return last\n"                                                                               \
    "end\n"                                                                                        \
    "local function keep_turns(ver,first)\n"                                                       \
    " local x,turns,to,till=call('LRANGE',K,0,-1),call('LRANGE',O,0,-1),{},{}\n"                   \
    " for i,v in ipairs(x) do x[i]=string.sub(v,1,20) end\n"                                       \
    " for i,v in ipairs(x) do\n"                                                                   \
    "  to[i]=x[i+1] or ver\n"                                                                      \
    "  till[i]=first~='' and to[i]>first and to[i] or named(v,to[i]) or ''\n"                      \
    " end\n"                                                                                       \
    " local i,keep=0,{}\n"                                                                         \
    " for _,t in ipairs(turns) do\n"                                                               \
    "  local v=string.sub(t,1,20)\n"                                                               \
    "  while x[i+1] and x[i+1]<v do i=i+1 end\n"                                                   \
    "  if i>0 and v<=till[i] then keep[#keep+1]=t end\n"                                           \
    " end\n"                                                                                       \
    " if #keep==#turns then return end\n"                                                          \
    " call('UNLINK',O)\n"                                                                          \
    " for _,t in ipairs(keep) do call('RPUSH',O,t) end\n"                                          \
    "end\n"                                                                                        \
    "local function prune(ver,first,all)\n"                                                        \
    " local i,x,gone=0,call('LINDEX',K,0),false\n"                                                 \
    " while x do\n"                                                                                \
    "  local y=call('LINDEX',K,i+1)\n"                                                             \
    "  local from,to=string.sub(x,1,20),y and string.sub(y,1,20) or ver\n"                         \
    "  if first~='' and to>first then break end\n"                                                 \
    "  if named(from,to) then\n"                                                                   \
    "   all=all or to==first\n"                                                                    \
    "   i=i+1\n"                                                                                   \
    "  else\n"                                                                                     \
    "   if i==0 then call('LPOP',K) else call('LREM',K,1,x) end\n"                                 \
    "   call('UNLINK',H..':s:'..number(x))\n"                                                      \
    "   gone=true\n"                                                                               \
    "  end\n"                                                                                      \
    "  x=y\n"                                                                                      \
    " end\n"                                                                                       \
    " if not x and i==0 then call('UNLINK',O) return gone end\n"                                   \
    " if i>0 then\n"                                                                               \
    "  if all or gone then keep_turns(ver,first) end\n"                                            \
    "  return gone\n"                                                                              \
    " end\n"                                                                                       \
    " x=string.sub(x,1,20)\n"                                                                      \
    " local t=call('LINDEX',O,0)\n"                                                                \
    " while t and string.sub(t,1,20)<=x do\n"                                                      \
    "  call('LPOP',O)\n"                                                                           \
    "  t=call('LINDEX',O,0)\n"                                                                     \
    " end\n"                                                                                       \
    " return gone\n"                                                                               \
    "end\n"

/* What a session counts with for its tenant's quota of bytes: a state, metadata, kept answers (al:
 * their sizes), for a transcript so much for each token of up to as many as one may have
 * (transcript.h), and what is kept of earlier versions: their snapshots, but for each checkpoint
 * with a name at least a state. charge(): i is where the bytes of a state and of a token stand. One
 * that an earlier version made is counted when it is written next. over(): would it be too much
 * with so many more? Then what has expired goes, and it is asked again. count(): as charge() has said
 * last. weigh(): the snapshots that are kept have changed. */
#define COUNT                                                                                      \
    "local function sum(al)\n"                                                                     \
    " local n=0\n"                                                                                 \
    " for v in string.gmatch(al,'%d+') do n=n+tonumber(v) end\n"                                   \
    " return n\n"                                                                                  \
    "end\n"                                                                                        \
    "local COUNTED\n"                                                                              \
    "local function charge(i,g,meta,al,tok)\n"                                                     \
    " local state,n=tonumber(ARGV[i]),tonumber(tok)*tonumber(ARGV[i+1])\n"                         \
    " if tonumber(tok)>2097152 then n=0 end\n"                                                     \
    " if g then n=n+math.max((tonumber(g.cn) or 0)*state,tonumber(g.kb) or 0) end\n"               \
    " COUNTED=n\n"                                                                                 \
    " return state+n+#meta+sum(al)\n"                                                              \
    "end\n"                                                                                        \
    "local function clear(over)\n"                                                                 \
    " for round=1,16 do\n"                                                                         \
    "  local n,looked=sweep(64)\n"                                                                 \
    "  if not over() then return false end\n"                                                      \
    "  if looked<64 then break end\n"                                                              \
    " end\n"                                                                                       \
    " return true\n"                                                                               \
    "end\n"                                                                                        \
    "local function over(g,by,most)\n"                                                             \
    " local more=by\n"                                                                             \
    " if g then more=by-(tonumber(g.by) or by) end\n"                                              \
    " if most=='0' or more<=0 then return nil end\n"                                               \
    " local function used() return tonumber(call('HGET',USE,ARGV[1]) or '0') end\n"                \
    " local function no() return used()+more>tonumber(most) end\n"                                 \
    " return no() and clear(no) and {'quota',ms,'bytes',digits(used()),most}\n"                    \
    "end\n"                                                                                        \
    "local function count(g,by)\n"                                                                 \
    " local had=g and tonumber(g.by) or 0\n"                                                       \
    " if by~=had then call('HINCRBY',USE,ARGV[1],digits(by-had)) end\n"                            \
    " add_kept(COUNTED-(g and tonumber(g.kc) or 0))\n"                                             \
    " call('HSET',H,'by',digits(by),'kc',digits(COUNTED))\n"                                       \
    "end\n"                                                                                        \
    "local function weigh(g)\n"                                                                    \
    " local n=0\n"                                                                                 \
    " for _,x in ipairs(call('LRANGE',K,0,-1)) do\n"                                               \
    "  n=n+(tonumber(string.match(x,'^%d+ %S+ (%d+) ')) or 0)\n"                                   \
    " end\n"                                                                                       \
    " g.kb=digits(n)\n"                                                                            \
    " call('HSET',H,'kb',g.kb)\n"                                                                  \
    "end\n"

/* Head fields of ARGV from i on: ver, tok, cre, use, ttl, meta; then the most sessions there may
 * be, the tenant's most sessions and bytes, the bytes of a state and of a token. full(): no room
 * for one more. */
#define MAKE                                                                                       \
    "local function too_many(key,most)\n"                                                          \
    " local function no() return call('ZCARD',key)>=tonumber(most) end\n"                          \
    " return most~='0' and no() and clear(no)\n"                                                   \
    "end\n"                                                                                        \
    "local function size(g,i)\n"                                                                   \
    " return charge(i+9,g,ARGV[i+5],g and g.al or '',ARGV[i+1])\n"                                 \
    "end\n"                                                                                        \
    "local function full(i)\n"                                                                     \
    " if too_many(ALL,ARGV[i+6]) then return {'full',ms,ARGV[i+6]} end\n"                          \
    " if too_many(IDS,ARGV[i+7]) then\n"                                                           \
    "  return {'quota',ms,'sessions',call('ZCARD',IDS),ARGV[i+7]}\n"                               \
    " end\n"                                                                                       \
    " return over(nil,size(nil,i),ARGV[i+8])\n"                                                    \
    "end\n"                                                                                        \
    "local function set(g,inc,i,...)\n"                                                            \
    " call('HSET',H,'inc',inc,'ver',ARGV[i],'tok',ARGV[i+1],'cre',ARGV[i+2],'use',ARGV[i+3],"      \
    "'ttl',ARGV[i+4],'meta',ARGV[i+5],...)\n"                                                      \
    " count(g,size(g,i))\n"                                                                        \
    " listed(ARGV[i+3],ARGV[i+4])\n"                                                               \
    " call('ZADD',IDS,0,ARGV[2])\n"                                                                \
    "end\n"

/* Stamps (store.h) of the last versions: ops(), as texts. recent(): with one more. is_of(): is the
 * version the one that has that stamp? Of a version whose stamp is not there any more nobody knows:
 * no. */
#define STAMPS                                                                                     \
    "local function ops()\n"                                                                       \
    " local all={}\n"                                                                              \
    " for v in string.gmatch(call('HGET',H,'ops') or '','%S+') do all[#all+1]=v end\n"             \
    " return all\n"                                                                                \
    "end\n"                                                                                        \
    "local function recent(ver,op)\n"                                                              \
    " local all=ops()\n"                                                                           \
    " while #all>7 do table.remove(all,1) end\n"                                                   \
    " all[#all+1]=ver..'='..op\n"                                                                  \
    " return table.concat(all,' ')\n"                                                              \
    "end\n"                                                                                        \
    "local function is_of(g,ver,op)\n"                                                             \
    " if op=='*' then return true end\n"                                                           \
    " if ver==g.ver then return op==g.op end\n"                                                    \
    " for _,v in ipairs(ops()) do\n"                                                               \
    "  if v==ver..'='..op then return true end\n"                                                  \
    " end\n"                                                                                       \
    " return false\n"                                                                              \
    "end\n"

/* The session's hash, of incarnation and fence ARGV[3] and [4]: `g`. f is free from there on. */
#define HELD                                                                                       \
    "local g=head(H)\n"                                                                            \
    "if not g then return {'none',ms} end\n"                                                       \
    "if g.inc~=ARGV[3] then return {'other',ms} end\n"                                             \
    "local f=fenced(g,ARGV[4])\n"                                                                  \
    "if f then return f end\n"

const char *const sl_lua_scripts[SL_LUA_N] = {
    [SL_LUA_LOOK] = BEGIN
    "local g=head(H)\n"
    "if not g or gone(g) then return {'none',ms} end\n"
    "return view(g)\n",

    /* node, call, Idempotency-Key, lease in ms, to remove it? Then HDEL first: it is allowed without
     * memory, and then so is the rest. Fences follow the clock, in µs: what had one of an earlier
     * session of this name, or of a copy of the store that is behind, has none of the later ones. */
    [SL_LUA_TAKE] = BEGIN
    "local g=head(H)\n"
    "if not g or gone(g) then return {'none',ms} end\n"
    "local node,holder=ARGV[3],ARGV[3]..':'..ARGV[4]\n"
    "if held(g) and g.lh~=holder and string.sub(g.lh,1,#node+1)~=node..':' then\n"
    " local v=view(g)\n"
    " v[1]='busy'\n"
    " return v\n"
    "end\n"
    "local fen=g.fen\n"
    "if g.lh~=holder then fen=digits(math.max(tonumber(g.fen)+1,now*1000000+tonumber(time[2]))) end\n"
    "if ARGV[7]=='1' then call('HDEL',H,'lh') end\n"
    "call('HSET',H,'lh',holder,'lu',digits(ms+tonumber(ARGV[6])),'ll',ARGV[6],'lk',ARGV[5],'fen',fen)\n"
    "g.fen=fen\n"
    "return view(g)\n",

    /* fence, lease in ms. HDEL first, as above. */
    [SL_LUA_RENEW] = BEGIN
    "local g=head(H)\n"
    "if not g then return {'none',ms} end\n"
    "if g.fen~=ARGV[3] or g.lh=='' then return {'fence',ms} end\n"
    "call('HDEL',H,'lu')\n"
    "call('HSET',H,'lu',digits(ms+tonumber(ARGV[4])),'ll',ARGV[4])\n"
    "return {'ok',ms}\n",

    /* fence */
    [SL_LUA_RELEASE] = BEGIN
    "local g=head(H)\n"
    "if not g or g.fen~=ARGV[3] or g.lh=='' then return {'ok',ms} end\n"
    "call('HDEL',H,'lh','lu','lk')\n"
    "call('HSET',H,'use',now)\n"
    "listed(now,g.ttl)\n"
    "return {'ok',ms}\n",

    /* who holds it, where no fence is known: the answer to a take was lost. Nothing was done with it. */
    [SL_LUA_DISOWN] = BEGIN
    "if call('HGET',H,'lh')==ARGV[3] then call('HDEL',H,'lh','lu','lk') end\n"
    "return {'ok',ms}\n",

    /* inc, fence, 5: ver, tok, cre, use, ttl, meta, 11: the most sessions, quotas, state, token. One
     * that comes with a fence makes no session: there was one, and it has gone. One that makes a session
     * which is there was asked again: what others have done to it since stays. */
    [SL_LUA_HEAD] = BEGIN COUNT MAKE
    "local inc,fence=ARGV[3],ARGV[4]\n"
    "local new=fence=='0' and ARGV[5]==string.rep('0',20)\n"
    "local g=head(H)\n"
    "if new and g and g.inc~=inc and gone(g) then wipe(H,IDS,ARGV[1],ARGV[2]) g=nil end\n"
    "if not g then\n"
    " if not new then return {'none',ms} end\n"
    " local f=full(5)\n"
    " if f then return f end\n"
    " set(nil,inc,5,'sv',ARGV[5],'rt',0,'fen',0)\n"
    " call('UNLINK',T,A,K,O,C)\n" /* of another life: of a hash that was evicted */
    " return {'ok',ms}\n"
    "end\n"
    "if g.inc~=inc then return {new and 'exists' or 'none',ms} end\n"
    "if new then return {'ok',ms} end\n"
    "local f=fenced(g,fence)\n"
    "if f then return f end\n"
    "if g.ver~=ARGV[5] then return {'version',ms,g.ver} end\n"
    "local by=charge(14,g,ARGV[10],g.al,g.tok)\n"
    "f=over(g,by,ARGV[13])\n"
    "if f then return f end\n"
    "call('HSET',H,'use',ARGV[8],'ttl',ARGV[9],'meta',ARGV[10])\n"
    "count(g,by)\n"
    "listed(ARGV[8],ARGV[9])\n"
    "return {'ok',ms}\n",

    /* inc, fence, stamp, version before, after, tok, use, new tokens, turn, answer or '', 13: first
     * kept, the tenant's most bytes, those of a state and of a token */
    [SL_LUA_TURN] = BEGIN COUNT KEPT STAMPS
    "local g=head(H)\n"
    "if not g then return {'none',ms} end\n"
    "if g.inc~=ARGV[3] then return {'other',ms} end\n"
    "if g.ver==ARGV[7] and g.op==ARGV[5] then return {'ok',ms} end\n"
    "local f=fenced(g,ARGV[4])\n"
    "if f then return f end\n"
    "if g.ver~=ARGV[6] then return {'version',ms,g.ver} end\n"
    "local al={}\n"
    "for v in string.gmatch(g.al,'%d+') do al[#al+1]=v end\n"
    "if ARGV[12]~='' then al[#al+1]=digits(#ARGV[12]-36) end\n"
    "if #al>4 then table.remove(al,1) end\n"
    "local sizes=table.concat(al,',')\n"
    "f=ARGV[12]~='' and over(g,charge(15,g,g.meta,sizes,ARGV[8]),ARGV[14])\n"
    "if f then return f end\n"
    "call('RPUSH',T,ARGV[11])\n"
    "if ARGV[12]~='' then\n"
    " call('RPUSH',A,ARGV[12])\n"
    " call('LTRIM',A,-4,-1)\n"
    " call('HSET',H,'al',sizes)\n"
    "end\n"
    "call('HSET',H,'ver',ARGV[7],'tok',ARGV[8],'use',ARGV[9],'op',ARGV[5],'ops',recent(ARGV[7],ARGV[5]))\n"
    "call('HINCRBY',H,'rt',ARGV[10])\n"
    "if ARGV[4]~='0' then call('HDEL',H,'lh','lu','lk') end\n"
    "listed(ARGV[9],g.ttl)\n"
    "if prune(g.sv,ARGV[13],g.of~='') then weigh(g) end\n"
    "if g.of~='' then call('HDEL',H,'of') end\n"
    "count(g,charge(15,g,g.meta,sizes,ARGV[8]))\n"
    "return {'ok',ms}\n",

    /* N, offset, life in ms, bytes. One that comes late, from a connection that was given up, does not
     * touch what the head speaks of by then, and takes nothing from the pieces behind it: what comes
     * under one number at one offset is always the same. None leaves a hole before it. */
    [SL_LUA_PIECE] = BEGIN
    "local S=H..':s:'..ARGV[3]\n"
    "if call('HGET',H,'sn')==ARGV[3] or is_kept(ARGV[3]) then return {'ok',ms} end\n"
    "local n=call('STRLEN',S)\n"
    "if n<tonumber(ARGV[4]) then return {'missing',ms} end\n"
    "if n==0 then\n"
    " call('SET',S,ARGV[6],'PX',ARGV[5])\n"
    "else\n"
    " call('SETRANGE',S,ARGV[4],ARGV[6])\n"
    " call('PEXPIRE',S,ARGV[5])\n"
    "end\n"
    "return {'ok',ms}\n",

    /* inc, fence, 5: ver, tok, cre, use, ttl, meta, 11: the most sessions, quotas, state, token, 16: N,
     * bytes, 18: first kept, of this version; digest, 20: with the head?, stamp. With the head it makes
     * a session where it comes without a fence, as HEAD does, and the stamp is a new one. Without the
     * head it is the one that the version has (*: whichever), so that no state of another history
     * comes under the turns of this one; and there may be later versions: what is not to be kept goes
     * with the next turn then (of: turns may have to). */
    [SL_LUA_SNAP] = BEGIN COUNT MAKE KEPT STAMPS
    "local inc,fence,ver,whole=ARGV[3],ARGV[4],ARGV[5],ARGV[20]=='1'\n"
    "local names=call('HLEN',C)>0\n"
    "local keeps=ARGV[18]~='' or names\n"
    "local S=H..':s:'..ARGV[16]\n"
    "local g=head(H)\n"
    "if g and g.inc==inc and (g.sn==ARGV[16] or is_kept(ARGV[16])) then return {'ok',ms} end\n"
    "if call('STRLEN',S)~=tonumber(ARGV[17]) then return {'missing',ms} end\n"
    "local function no(a) call('UNLINK',S) return a end\n"
    "local snap={'sv',ver,'sn',ARGV[16],'sz',ARGV[17],'sd',ARGV[19],'st',ARGV[6],'su',ARGV[8]}\n"
    "local new=whole and fence=='0'\n"
    "if new and g and g.inc~=inc and gone(g) then wipe(H,IDS,ARGV[1],ARGV[2]) g=nil end\n"
    "if not g then\n"
    " if not new then return no({'none',ms}) end\n"
    " local f=full(5)\n"
    " if f then return no(f) end\n"
    " set(nil,inc,5,'rt',0,'fen',0,'op',ARGV[21],'ops',ver..'='..ARGV[21],unpack(snap))\n"
    " call('UNLINK',T,A,K,O,C)\n"
    " call('PERSIST',S)\n"
    " return {'ok',ms}\n"
    "end\n"
    "if g.inc~=inc then return no({new and 'exists' or whole and 'none' or 'other',ms}) end\n"
    "local f=whole and fenced(g,fence)\n"
    "if f then return no(f) end\n"
    "if ver<g.sv or (whole and ver<g.ver) or (not whole and ver>g.ver) then\n"
    " return no({'version',ms,g.ver})\n"
    "end\n"
    "if not whole and not is_of(g,ver,ARGV[21]) then return no({'stamp',ms}) end\n"
    "f=whole and over(g,size(g,5),ARGV[13])\n"
    "if f then return no(f) end\n"
    "if ver==g.sv then snap[10],snap[12]=g.st,g.su elseif not whole then snap[10],snap[12]=g.tok,g.use end\n"
    "if whole then set(g,inc,5,'rt',0,'op',ARGV[21],'ops',ver..'='..ARGV[21],unpack(snap)) else call('HSET',H,unpack(snap)) end\n"
    "call('PERSIST',S)\n"
    "if keeps and g.sv~=ver then\n"
    " local function or_none(v) return v~='' and v or '-' end\n"
    " call('RPUSH',K,table.concat({g.sv,or_none(g.sn),or_none(g.sz),or_none(g.sd),or_none(g.st),or_none(g.su)},' '))\n"
    "elseif g.sn~='' then\n"
    " call('UNLINK',H..':s:'..g.sn)\n"
    "end\n"
    "local tokens,t=0,call('LINDEX',T,0)\n"
    "while t and (whole or string.sub(t,1,20)<=ver) do\n"
    " tokens=tokens+(tonumber(string.sub(t,21,30)) or 0)\n"
    " if keeps then call('RPUSH',O,t) end\n"
    " call('LPOP',T)\n"
    " if not whole and string.sub(t,1,20)==ver and ver~=g.ver then\n"
    "  call('HSET',H,'st',string.format('%.0f',(struct.unpack('<I8',t,47))),'su',string.format('%.0f',(struct.unpack('<i8',t,55))))\n"
    " end\n"
    " t=call('LINDEX',T,0)\n"
    "end\n"
    "if tokens>0 and not whole then call('HINCRBY',H,'rt',string.format('-%.0f',tokens)) end\n"
    "if whole or ARGV[18]=='' then\n"
    " prune(ver,ARGV[18],true)\n"
    "elseif names then\n"
    " call('HSET',H,'of',1)\n"
    "end\n"
    "if keeps or g.kb~='' then\n"
    " g=head(H)\n"
    " weigh(g)\n"
    " count(g,charge(14,g,g.meta,g.al,g.tok))\n"
    "end\n"
    "return {'ok',ms}\n",

    /* inc, fence, the version it is at, name, version, 8: the most names, the tenant's most bytes, those
     * of a state and of a token. There must be room for one state more, though it may be kept already:
     * that goes with the turns. The first name of all makes the store one of the later form. */
    [SL_LUA_NAME] = BEGIN COUNT
    HELD
    "if g.ver~=ARGV[5] then return {'version',ms,g.ver} end\n"
    "local had,ver=call('HGET',C,ARGV[6]),ARGV[7]\n"
    "if had==ver then return {'ok',ms} end\n"
    "if had then return {'named',ms,had} end\n"
    "if call('HLEN',C)>=tonumber(ARGV[8]) then return {'names',ms,ARGV[8]} end\n"
    "local function there()\n"
    " if ver>g.ver then return false end\n"
    " if ver>=g.sv then return true end\n"
    " local base\n"
    " for _,x in ipairs(call('LRANGE',K,0,-1)) do\n"
    "  if string.sub(x,1,20)<=ver then base=string.sub(x,1,20) end\n"
    " end\n"
    " if not base or base==ver then return base~=nil end\n"
    " for _,t in ipairs(call('LRANGE',O,0,-1)) do\n"
    "  if string.sub(t,1,20)==ver then return true end\n"
    " end\n"
    " return false\n"
    "end\n"
    "if not there() then return {'unkept',ms} end\n"
    "f=over(g,charge(10,g,g.meta,g.al,g.tok)+tonumber(ARGV[10]),ARGV[9])\n"
    "if f then return f end\n"
    "g.cn=digits(call('HLEN',C)+1)\n"
    "call('HSET',C,ARGV[6],ver)\n"
    "call('HSET',H,'cn',g.cn)\n"
    "count(g,charge(10,g,g.meta,g.al,g.tok))\n"
    "if (tonumber(call('GET','slate1:schema') or '0') or 0)<2 then call('SET','slate1:schema',2) end\n"
    "return {'ok',ms}\n",

    /* inc, fence, the version it is at, name, first kept, 8: the bytes of a state and of a token */
    [SL_LUA_UNNAME] = BEGIN COUNT KEPT
    HELD
    "if g.ver~=ARGV[5] then return {'version',ms,g.ver} end\n"
    "if call('HDEL',C,ARGV[6])==0 then return {'unnamed',ms} end\n"
    "g.cn=digits(call('HLEN',C))\n"
    "call('HSET',H,'cn',g.cn)\n"
    "if prune(g.sv,ARGV[7],true) then weigh(g) end\n"
    "count(g,charge(8,g,g.meta,g.al,g.tok))\n"
    "return {'ok',ms}\n",

    /* inc, fence */
    [SL_LUA_REMOVE] = BEGIN
    HELD
    "wipe(H,IDS,ARGV[1],ARGV[2])\n"
    "return {'ok',ms}\n",

    /* inc, what is kept, too? */
    [SL_LUA_LOAD] = BEGIN
    "local g=head(H)\n"
    "if not g then return {'none',ms} end\n"
    "if g.inc~=ARGV[3] then return {'other',ms} end\n"
    "local v=view(g)\n"
    "v[18]=g.sn\n"
    "v[19]=g.sz\n"
    "v[20]=g.sd\n"
    "v[21]=call('LRANGE',T,0,-1)\n"
    "v[22]=call('LRANGE',A,0,-1)\n"
    "local too=ARGV[4]=='1'\n"
    "v[23]=too and call('LRANGE',K,0,-1) or {}\n"
    "v[24]=too and call('LRANGE',O,0,-1) or {}\n"
    "v[25]=g.st\n"
    "v[26]=g.su\n"
    "v[27]=too and call('HGETALL',C) or {}\n"
    "return v\n",

    /* the lower end, prefix, how many at most: whether there are more, the last id that was looked
     * at (many may have expired that are still there), then id and view of each */
    [SL_LUA_LIST] = BEGIN
    "local low,prefix,most=ARGV[3],ARGV[4],tonumber(ARGV[5])\n"
    "local out={'ok',ms,0,''}\n"
    "for round=1,20 do\n"
    " local ids=call('ZRANGEBYLEX',IDS,low,'+','LIMIT',0,most+1)\n"
    " if #ids==0 then return out end\n"
    " for _,id in ipairs(ids) do\n"
    "  if string.sub(id,1,#prefix)~=prefix then return out end\n"
    "  local g=head('slate1:{'..ARGV[1]..'/'..id..'}')\n"
    "  if g and not gone(g) then\n"
    "   if #out-4==most then out[3]=1 return out end\n"
    "   local v=view(g)\n"
    "   v[1]=id\n"
    "   out[#out+1]=v\n"
    "  end\n"
    " end\n"
    " out[4]=ids[#ids]\n"
    " low='('..out[4]\n"
    "end\n"
    "out[3]=1\n"
    "return out\n",

    /* how many at most: how many there are afterwards, have gone, were looked at; the bytes that are
     * kept of all */
    [SL_LUA_SWEEP] = BEGIN
    "local n,looked=sweep(ARGV[3])\n"
    "return {'ok',ms,call('ZCARD',ALL),n,looked,call('GET','slate1:kept') or '0'}\n",

    /* what, fence (0: of whatever turn runs), life in ms: does it run?, its fence. HDEL first: so that
     * what may make room can be ended without memory. */
    [SL_LUA_ASK] = BEGIN
    "local g=head(H)\n"
    "if not g or gone(g) then return {'none',ms} end\n"
    "local fence=ARGV[4]\n"
    "if not held(g) or string.sub(g.lh,-2)~=':t' or (fence~='0' and fence~=g.fen) then\n"
    " return {'ok',ms,0,g.fen}\n"
    "end\n"
    "local to='slate1:asked:'..string.match(g.lh,'^[^:]*')\n"
    "call('HDEL',H,'-')\n"
    "call('SADD',to,ARGV[3]..' '..g.fen..' '..ARGV[1]..'/'..ARGV[2])\n"
    "call('PEXPIRE',to,ARGV[5])\n"
    "return {'ok',ms,1,g.fen}\n",

    /* node, how many at most: they are told once */
    [SL_LUA_ASKED] = BEGIN
    "return {'ok',ms,call('SPOP','slate1:asked:'..ARGV[3],ARGV[4])}\n",
};
