// The status of objects, in one of few tones. The words are the API's own states.
import type { Adapter, Change, Cluster, Condition, Drift, Enrollment, Forge, Gateway, Hold, Kind, Pool, ProxyGroup, Risk, Runner, Scope, Signin, Tailnet } from '../wire.ts'
import { count, plain } from './names.ts'

export type Tone = 'ok' | 'warn' | 'bad' | 'idle' | 'wait' | 'unknown'
export type Standing = { tone: Tone; text: string }

function find(conditions: Condition[] | null, type: string): Condition | undefined {
  return conditions?.find((c) => c.type === type)
}

/** The Ready condition, as the API's own lists show it. */
export function ready(conditions: Condition[] | null): Standing {
  switch (find(conditions, 'Ready')?.status) {
    case 'True':
      return { tone: 'ok', text: 'Ready' }
    case 'False':
      return { tone: 'bad', text: 'NotReady' }
  }
  return { tone: 'unknown', text: 'Unknown' }
}

export function cluster(c: Cluster): Standing {
  const tone: Record<string, Tone> = { Alive: 'ok', Suspect: 'warn', Dead: 'bad', Left: 'idle' }
  return { tone: tone[c.health] ?? 'unknown', text: c.health }
}

export function signin(s: Signin): Standing {
  const tone: Record<string, Tone> = { Ready: 'ok', Pending: 'wait', Ending: 'wait', Refused: 'bad', Expired: 'idle' }
  return { tone: tone[s.phase] ?? 'unknown', text: s.phase }
}

export function credential(t: Tailnet): Standing {
  if (t.credential.valid === null) return { tone: 'unknown', text: 'Unknown' }
  return t.credential.valid ? { tone: 'ok', text: 'Valid' } : { tone: 'bad', text: 'Refused' }
}

export function extension(g: Gateway): Standing {
  if (g.extension.fresh === null) return { tone: 'unknown', text: 'Unknown' }
  return g.extension.fresh ? { tone: 'ok', text: 'Current' } : { tone: 'warn', text: 'Behind' }
}

export function replicas(p: ProxyGroup): Standing {
  if (p.ready === null) return { tone: 'unknown', text: `? of ${p.wanted}` }
  return { tone: p.ready >= p.wanted ? 'ok' : p.ready === 0 ? 'bad' : 'warn', text: `${p.ready} of ${p.wanted}` }
}

export function adapter(a: Adapter): Standing {
  if (a.ready === null) return { tone: 'unknown', text: 'Unknown' }
  return a.ready ? { tone: 'ok', text: 'Ready' } : { tone: 'bad', text: 'NotReady' }
}

export function pool(p: Pool): Standing {
  const tone: Record<string, Tone> = { Active: 'ok', Paused: 'idle', Drained: 'idle', Pausing: 'wait', Draining: 'wait', Resuming: 'wait', Provisioning: 'wait', Degraded: 'warn', Error: 'bad' }
  return { tone: tone[p.state] ?? 'unknown', text: p.state }
}

/**
 * A sentence about the jobs that are assigned to a pool, or the reason why they are unknown.
 * stuck describes jobs that cannot start, and next the remedy. Both are "" if there are none.
 */
export function jobs(p: Pick<Pool, 'assigned' | 'stranded' | 'effectiveMax' | 'holds' | 'controller'>): { text: string; stuck: string; next: string } {
  if (p.assigned === null) {
    const why = p.controller.kind === 'AutoscalingRunnerSet' ? 'only the metrics of its listener report them, and these metrics are not available' : p.controller.kind ? 'only GitHub reports them' : 'no source has reported this pool'
    return { text: `The number of assigned jobs is unknown: ${why}.`, stuck: '', next: '' }
  }
  const text = `GitHub has assigned ${count(p.assigned, 'job')} to this pool, including running jobs.${p.stranded === null && p.effectiveMax === 0 ? ' The number of jobs that cannot start is unknown.' : ''}`
  if (!p.stranded) return { text, stuck: '', next: '' }
  const next = p.holds?.length ? 'Lift the holds on this pool to start the jobs. GitHub cancels jobs that wait for 24 hours.' : 'The pool is not held, but it has no share of the budget. Raise the budget, or reduce the shares of others. GitHub cancels jobs that wait for 24 hours.'
  return { text, stuck: `${count(p.stranded, 'job is', 'jobs are')} stranded: assigned to this pool, whose current maximum is 0 runners.`, next }
}

export function runner(r: Pick<Runner, 'state'>): Standing {
  const tone: Record<string, Tone> = { Busy: 'ok', Idle: 'idle', Pending: 'wait', Starting: 'wait', Ending: 'wait', Finished: 'idle', Outdated: 'warn', Failed: 'bad' }
  return { tone: tone[r.state] ?? 'unknown', text: r.state }
}

export function enrollment(e: Enrollment): Standing {
  const tone: Record<string, Tone> = { Active: 'ok', Requested: 'wait', Approved: 'wait', Provisioning: 'wait', Draining: 'wait', Offboarded: 'idle', Suspended: 'bad', Failed: 'bad' }
  return { tone: tone[e.phase] ?? 'unknown', text: e.phase }
}

export function hold(h: Hold): Standing {
  const tone: Record<string, Tone> = { Applying: 'wait', Applied: 'warn', Drained: 'warn', Lifting: 'wait', Expired: 'idle' }
  return { tone: tone[h.state] ?? 'unknown', text: h.state }
}

export function forge(f: Forge): Standing {
  if (f.reachable === null) return { tone: 'unknown', text: 'Unknown' }
  return f.reachable ? { tone: 'ok', text: 'Reachable' } : { tone: 'bad', text: 'Unreachable' }
}

export function drift(d: Pick<Drift, 'severity' | 'explainedBy' | 'ignoredUntil'>): Standing {
  if (d.explainedBy) return { tone: 'idle', text: 'Explained' }
  if (d.ignoredUntil) return { tone: 'idle', text: 'Ignored' }
  const tone: Record<string, Tone> = { info: 'idle', warning: 'warn', error: 'bad' }
  return { tone: tone[d.severity] ?? 'unknown', text: capital(d.severity) }
}

/** Whether the drift needs attention: no hold explains it, and it is not ignored. */
export function counts(d: Pick<Drift, 'explainedBy' | 'ignoredUntil'>): boolean {
  return !d.explainedBy && !d.ignoredUntil
}

function capital(word: string): string {
  return plain(word.charAt(0).toUpperCase() + word.slice(1))
}

export function change(c: Pick<Change, 'state'>): Standing {
  const tone: Record<string, Tone> = { open: 'wait', approved: 'ok', merging: 'wait', merged: 'wait', applied: 'ok', closed: 'idle' }
  return { tone: tone[c.state] ?? 'unknown', text: capital(c.state) }
}

/** How carefully a change should be reviewed. */
export function risk(r: Pick<Risk, 'level'>): Standing {
  const tone: Record<string, Tone> = { low: 'idle', medium: 'warn', high: 'bad' }
  return { tone: tone[r.level] ?? 'unknown', text: `${capital(r.level)} risk` }
}

/** Whether a change is still open. */
export function pending(c: Change): boolean {
  return c.state !== 'applied' && c.state !== 'closed'
}

/** The scope of a hold, in words. */
export function scope(s: Scope): string {
  if (s.all) return 'everything'
  if (s.forge) return `forge ${s.forge}`
  if (!s.pool) return `organisation ${s.org}`
  return s.org ? `${s.pool} of ${s.org}` : `pool ${s.pool}`
}

/** Whether the scope is more than one pool of one organisation. */
export function wide(s: Scope): boolean {
  return !s.org || !s.pool
}

/** Whether a hold is active. */
export function inForce(h: Hold): boolean {
  return h.state !== 'Lifting' && h.state !== 'Expired'
}

/** The tone of a state, for a kind with only numbers. */
export function toneOf(kind: Kind, state: string): Tone {
  if (kind === 'cluster') return cluster({ health: state } as Cluster).tone
  if (kind === 'signin') return signin({ phase: state } as Signin).tone
  if (kind === 'pool') return pool({ state } as Pool).tone
  if (kind === 'enrollment') return enrollment({ phase: state } as Enrollment).tone
  if (kind === 'hold') return hold({ state } as Hold).tone
  if (kind === 'change') return change({ state } as Change).tone
  if (kind === 'drift') return drift({ severity: state, explainedBy: state === 'explained' ? state : '', ignoredUntil: state === 'ignored' ? state : null } as Drift).tone
  if (kind === 'forge') return state === 'Reachable' ? 'ok' : state === 'Unreachable' ? 'bad' : 'unknown'
  return state === 'Ready' ? 'ok' : state === 'NotReady' ? 'bad' : 'unknown'
}

/** The name of a state on the page of its kind. */
export function stateOf(kind: Kind, state: string): string {
  return kind === 'drift' || kind === 'change' ? capital(state) : plain(state)
}

/** The page that shows objects of a kind. */
export function pageOf(kind: Kind): string {
  const pages: Record<Kind, string> = {
    cluster: '/clusters?',
    signin: '/signins?',
    tailnet: '/network?tab=tailnets&',
    gateway: '/network?tab=gateways&',
    route: '/network?tab=routes&',
    proxygroup: '/network?tab=groups&',
    adapter: '/adapters?',
    pool: '/fleet?tab=runners&',
    enrollment: '/fleet?tab=orgs&',
    hold: '/fleet?tab=holds&',
    forge: '/fleet?tab=forges&',
    change: '/changes?',
    drift: '/fleet?tab=drift&',
  }
  return pages[kind] ?? '/?'
}

export type Step = { name: string; is: 'done' | 'now' | 'bad' | 'later' }

/** The progress of an enrollment until it is active or removed. A step without a report is not shown as done. */
export function steps(e: Pick<Enrollment, 'phase' | 'offboard' | 'conditions'>): Step[] {
  if (e.offboard || e.phase === 'Draining' || e.phase === 'Offboarded') {
    const ends = [['StopIntake', 'Stop intake'], ['Drain', 'Drain'], ['Deregister', 'Deregister'], ['DeleteWorkloads', 'Delete workloads'], ['DeleteSecrets', 'Delete secrets'], ['DeleteNamespace', 'Delete namespace'], ['Done', 'Done']] as const
    const i = e.phase === 'Offboarded' ? ends.length : ends.findIndex(([step]) => step === (e.offboard?.step ?? 'StopIntake'))
    const now = find(e.conditions, 'DecisionNeeded')?.status === 'True' ? 'bad' : 'now'
    return ends.map(([, name], n) => ({ name, is: n < i ? 'done' : n === i ? now : 'later' }))
  }
  const all = [['Approved', 'Approved'], ['CredentialsValid', 'Credential'], ['NamespaceReady', 'Namespace'], ['Registered', 'Registered'], ['Ready', 'Active']] as const
  const says = (type: string) => (e.phase === 'Active' ? 'True' : find(e.conditions, type)?.status)
  const stuck = e.phase === 'Failed' || e.phase === 'Suspended'
  const at = e.phase === 'Unknown' ? -1 : all.findIndex(([type]) => (stuck ? says(type) === 'False' : says(type) !== 'True'))
  return [{ name: 'Requested', is: 'done' }, ...all.map(([type, name], n): Step => ({ name, is: says(type) === 'True' ? 'done' : n === at ? (stuck ? 'bad' : 'now') : 'later' }))]
}
