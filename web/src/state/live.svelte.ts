// The current state. One stream of events keeps all lists current.
import { count } from '../text/names.ts'
import type { AuditEntry, EventData, Kind, Kinds, Me, Source } from '../wire.ts'
import { ApiError, get } from './api.ts'
import { List } from './list.svelte.ts'
import { say } from './say.svelte.ts'

export const lists: { [K in Kind]: List<K> } = {
  cluster: new List('cluster', '/clusters'),
  signin: new List('signin', '/signins'),
  tailnet: new List('tailnet', '/tailnets'),
  gateway: new List('gateway', '/gateways'),
  route: new List('route', '/routes'),
  proxygroup: new List('proxygroup', '/proxygroups'),
  adapter: new List('adapter', '/adapters'),
  pool: new List('pool', '/pools'),
  enrollment: new List('enrollment', '/enrollments'),
  hold: new List('hold', '/holds'),
  forge: new List('forge', '/forges'),
  change: new List('change', '/changes'),
  drift: new List('drift', '/drift'),
}

const words: Record<Kind, string> = {
  cluster: 'clusters',
  signin: 'sign-ins',
  tailnet: 'tailnets',
  gateway: 'gateways',
  route: 'routes',
  proxygroup: 'proxy groups',
  adapter: 'adapters',
  pool: 'runners',
  enrollment: 'organisations',
  hold: 'holds',
  forge: 'forges',
  change: 'changes',
  drift: 'findings',
}

export const live = $state({
  link: 'connecting' as 'connecting' | 'live' | 'reconnecting' | 'ended',
  /** Time of the last message of the server. */
  heard: null as number | null,
  /** The reason why the server ended the stream. */
  why: '',
  me: null as Me | null,
  fault: null as ApiError | null,
  sources: null as Source[] | null,
  /** Increases with each change of an object or a source. */
  changes: 0,
  /** Increases with each change of a single runner, because there is no list of all runners. */
  runners: 0,
})

/** Reports whether the caller may use the verb on any object, including objects that belong to the caller. */
export function may(verb: string): boolean {
  return Object.values(live.me?.verbs ?? {}).some((v) => v.includes(verb))
}

/** Reports whether the caller may use the verb on objects of one organisation. "" means platform objects. */
export function mayIn(verb: string, org: string): boolean {
  return ['*', org].some((o) => live.me?.verbs?.[o]?.includes(verb))
}

/** The follower of the audit log. It receives each entry, and null when it must read the log again. */
let follower: ((entry: AuditEntry | null) => void) | null = null
let reopen = (): void => {}

/**
 * Follows the audit log until the caller calls the returned function. The stream contains
 * audit entries only on request, so it is opened again.
 */
export function followRecord(tell: (entry: AuditEntry | null) => void): () => void {
  follower = tell
  reopen()
  return () => {
    follower = null
    reopen()
  }
}

/** The last received revision, at which the stream continues. */
let revision = ''

export async function readMe(): Promise<void> {
  try {
    const e = await get<'/me'>('/me')
    live.me = e.data
    live.fault = null
    revision ||= e.meta.revision
  } catch (e) {
    if (!(e instanceof ApiError)) throw e
    live.fault = e
    if (!e.denied) return
    live.me = null
    live.sources = null
    for (const l of Object.values(lists)) l.forget()
  }
}

export async function readSources(): Promise<void> {
  try {
    live.sources = (await get<'/sources'>('/sources')).data
  } catch (e) {
    if (!(e instanceof ApiError)) throw e
  }
}

/**
 * Opens the stream and keeps it open. A page reads a list when it needs it. So the stream
 * starts at a revision, without a snapshot of all objects.
 */
export function connect(): () => void {
  let es: EventSource | undefined
  let retry: ReturnType<typeof setTimeout> | undefined
  let tries = 0
  let hiddenAt = 0

  const open = () => {
    clearTimeout(retry)
    es?.close()
    const s = new EventSource('/api/v1/events?topics=infra,signins,pools,holds,enrollments,changes,drift,runners,sources' + (follower ? ',audit' : '') + (revision ? '&after=' + revision : ''))
    es = s
    const on = <E extends keyof EventData>(name: E, f: (data: EventData[E], revision: number) => void) =>
      s.addEventListener(name, (e: MessageEvent<string>) => {
        live.heard = Date.now()
        if (e.lastEventId) revision = e.lastEventId
        let data: EventData[E]
        try {
          data = JSON.parse(e.data) as EventData[E]
        } catch {
          return resync()
        }
        f(data, Number(e.lastEventId) || 0)
      })

    on('hello', () => {
      live.link = 'live'
      live.why = ''
      tries = 0
      follower?.(null) // the stream does not contain earlier entries
    })
    on('audit.append', (d) => follower?.(d))
    on('snapshot', resync) // the server cannot continue at the revision
    on('resync', resync)
    on('bye', (d) => {
      live.why = reason(d)
      s.close()
      again()
    })
    on('source.status', (src) => {
      live.changes++
      for (const l of Object.values(lists)) if (l.rows === null) l.refresh() // the source may have data now
      live.sources = [...(live.sources ?? []).filter((x) => x.name !== src.name), src].sort((a, b) => (a.name < b.name ? -1 : 1))
    })
    for (const kind of Object.keys(lists) as Kind[]) {
      on(`${kind}.upsert`, (o, rev) => hear(kind, rev, o.id, o))
      on(`${kind}.delete`, (o, rev) => hear(kind, rev, o.id, null))
    }
    for (const change of ['upsert', 'delete'] as const) on(`runner.${change}`, () => live.runners++)
    s.onerror = () => {
      live.link = live.link === 'ended' ? 'ended' : 'reconnecting'
      if (s.readyState === EventSource.CLOSED) again() // the server rejected it; the browser reopens a broken stream itself
    }
  }

  const again = () => {
    live.link = 'reconnecting'
    clearTimeout(retry)
    retry = setTimeout(
      async () => {
        await readMe() // a caller without a role has nothing to read
        if (live.fault?.denied) live.link = 'ended'
        open()
      },
      Math.min(60_000, 1000 * 2 ** tries++) * (0.75 + Math.random() / 2),
    )
  }

  // After sleep, the connection can be dead although the browser reports no error.
  const seen = () => {
    if (document.hidden) hiddenAt = Date.now()
    else if (hiddenAt && Date.now() - hiddenAt > 300_000) open()
  }
  const online = () => live.link !== 'live' && open()

  void readMe().then(() => {
    open()
    reopen = open
  })
  document.addEventListener('visibilitychange', seen)
  addEventListener('online', online)
  return () => {
    clearTimeout(retry)
    reopen = () => {}
    es?.close()
    document.removeEventListener('visibilitychange', seen)
    removeEventListener('online', online)
  }
}

/** Reads all lists again that a view has used. */
function resync(): void {
  live.changes++
  for (const l of Object.values(lists)) l.refresh()
  follower?.(null)
  void readSources()
}

let changes = 0
let about: Kind | 'mixed' | '' = ''

function hear(kind: Kind, at: number, id: string, object: Kinds[Kind] | null): void {
  live.changes++
  const list = lists[kind] as List<Kind>
  list.tell(at, id, object)
  if (list.rows === null) return
  changes++
  about = about === '' || about === kind ? kind : 'mixed'
  say(`${count(changes, 'update')} to ${about === 'mixed' ? 'several lists' : words[kind]}`)
  setTimeout(() => ((changes = 0), (about = '')), 5000)
}

function reason(d: unknown): string {
  const r = (d as { reason?: unknown } | null)?.reason
  return typeof r === 'string' ? r : ''
}
