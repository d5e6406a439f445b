// How objects stand, in one of few tones. The words are the API's own states.
import type { Adapter, Cluster, Condition, Gateway, Kind, ProxyGroup, Signin, Tailnet } from '../wire.ts'

export type Tone = 'ok' | 'warn' | 'bad' | 'idle' | 'wait' | 'unknown'
export type Standing = { tone: Tone; text: string }

function find(conditions: Condition[] | null, type: string): Condition | undefined {
  return conditions?.find((c) => c.type === type)
}

/** The Ready condition, as the API's own lists read it. */
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
  if (t.credential.valid === null) return { tone: 'unknown', text: 'Not known' }
  return t.credential.valid ? { tone: 'ok', text: 'Valid' } : { tone: 'bad', text: 'Refused' }
}

export function extension(g: Gateway): Standing {
  if (g.extension.fresh === null) return { tone: 'unknown', text: 'Not known' }
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

/** The tone of a state, for a kind of which only the numbers are known. */
export function toneOf(kind: Kind, state: string): Tone {
  if (kind === 'cluster') return cluster({ health: state } as Cluster).tone
  if (kind === 'signin') return signin({ phase: state } as Signin).tone
  return state === 'Ready' ? 'ok' : state === 'NotReady' ? 'bad' : 'unknown'
}

/** Where an object is shown. */
export function pageOf(kind: Kind): string {
  const pages: Record<Kind, string> = {
    cluster: '/clusters?',
    signin: '/signins?',
    tailnet: '/network?tab=tailnets&',
    gateway: '/network?tab=gateways&',
    route: '/network?tab=routes&',
    proxygroup: '/network?tab=groups&',
    adapter: '/adapters?',
  }
  return pages[kind] ?? '/?'
}
