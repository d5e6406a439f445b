// The objects of the API as internal/plane writes them. null means unknown.

export type Condition = { type: string; status: 'True' | 'False' | 'Unknown'; reason: string; message: string; since?: string }
export type Action = { allowed: boolean; why: string }
type Observed = { id: string; observedAt: string }

export type Cluster = Observed & {
  name: string
  endpoint: string
  port: number
  url: string
  labels: Record<string, string> | null
  health: 'Alive' | 'Suspect' | 'Unknown' | 'Dead' | 'Left'
  lastSeen: string | null
  verified: boolean
  conflict: boolean
  self: boolean
  version: string
  skew: boolean | null
  members: { node: string; host: string; health: string; lastSeen: string | null }[] | null
}

export type Signin = Observed & {
  tailnet?: string
  namespace: string
  name: string
  login: string
  device: string
  role: string
  namespaces: string[] | null
  created: string
  validUntil: string | null
  phase: 'Pending' | 'Ready' | 'Refused' | 'Ending' | 'Expired'
  conditions: Condition[] | null
  actions?: { revoke: Action }
}

export type Tailnet = Observed & {
  name: string
  domain: string | null
  organisation: string | null
  credential: { valid: boolean | null; reason: string; checkedAt: string | null }
  devices: number | null
  services: number | null
  lastSync: string | null
  conditions: Condition[] | null
}

export type Gateway = Observed & {
  namespace: string
  name: string
  target: string
  class: string | null
  listeners: { name: string; protocol: string; port: number; hostname: string }[] | null
  tailnets: { name: string; services: number; lastSync: string | null; stale: boolean; message: string }[] | null
  services: { name: string; tailnet: string; route: string; path: string; cluster: string; state: string }[] | null
  extension: { desired: string | null; translated: string | null; at: string | null; fresh: boolean | null }
  conditions: Condition[] | null
}

export type Route = Observed & {
  resource: string
  namespace: string
  name: string
  target: string
  tailnet: string | null
  hostnames: string[] | null
  rules: { path: string; backend: string; state: string }[] | null
  refused: { ref: string; reason: string; message: string }[] | null
  conditions: Condition[] | null
}

export type ProxyGroup = Observed & {
  namespace: string
  name: string
  type: string
  tailnet: string | null
  wanted: number
  ready: number | null
  devices: { ordinal: number; hostname: string; fqdn: string; addresses: string[] | null; ready: boolean; reason: string }[] | null
  conditions: Condition[] | null
}

export type Adapter = Observed & {
  namespace: string
  pod: string
  node: string
  ready: boolean | null
  restarts: number | null
  version: string | null
  outdated: boolean | null
  message: string
  clusters: { cluster: string; healthy: boolean }[] | null
}

export type Pool = Observed & {
  name: string
  forge: string
  org: string
  type: string
  isolation: string
  runsOn: string[] | null
  scaling: { min: number; max: number; budget: number } | null
  state: 'Error' | 'Unknown' | 'Degraded' | 'Pausing' | 'Draining' | 'Resuming' | 'Provisioning' | 'Drained' | 'Paused' | 'Active'
  stateReason: string
  holds: string[] | null
  counts: { idle: number | null; busy: number | null; pending: number | null; failed: number | null }
  effectiveMax: number | null
  allocated: number | null
  assigned: number | null
  stranded: number | null
  controller: { kind: string; namespace: string; name: string }
  scaleSetId: number | null
  runnerId: number | null
  drift: string[] | null
  actions?: { pause: Action; resume: Action }
}

export type Enrollment = Observed & {
  name: string
  forge: string
  configURL: string
  isolation: string
  phase: 'Unknown' | 'Requested' | 'Approved' | 'Provisioning' | 'Active' | 'Suspended' | 'Draining' | 'Offboarded' | 'Failed'
  pools: { name: string; type: string; max: number | null; repositories: string[] | null }[] | null
  adopted: Adoption[] | null
  owners: string[] | null
  members: string[] | null
  quota: { cpu: string; memory: string; pods: number } | null
  credential: { kind: string; fingerprint: string; appId: number | null; installationId: number | null; createdAt: string | null; expiresAt: string | null } | null
  rotation: { every: string; at: string | null }
  offboard: { step: string; since: string; message: string } | null
  conditions: Condition[] | null
  digest: string
  requestedBy: string[] | null
  approval: { by: string; at: string; digest: string } | null
  asked: { what: 'rotate' | 'offboard'; by: string; at: string; reason: string } | null
  actions?: { edit: Action; approve: Action; decline: Action; rotate: Action; offboard: Action }
}

/** An external scale set that takes jobs of an organisation. */
export type Adoption = { pool: string; namespace: string; workload: string; scaleSetId: number | null; min: number | null; max: number | null; counts: Pool['counts']; hold: string; seenAt: string | null }

/** The result of a request about an organisation, or of its dry-run. */
export type EnrollmentOutcome = {
  org: string
  approval: 'git' | 'plane'
  done: 'proposed' | 'approved' | 'declined' | 'written' | 'asked' | 'nothing'
  would?: 'proposed' | 'approved' | 'declined' | 'written' | 'asked'
  seen?: string
  change: Change | null
  preview?: Preview
  enrollment: Enrollment | null
}

export type Scope = { all?: boolean; forge?: string; org?: string; pool?: string }

export type Hold = Observed & {
  name: string
  uid: string
  version: string
  scope: Scope
  mode: 'Pause' | 'Drain' | 'Stop'
  reason: string
  requestedBy: string
  created: string
  expiresAt: string | null
  state: 'Applying' | 'Applied' | 'Drained' | 'Lifting' | 'Expired'
  targets: number | null
  applied: number | null
  drained: number | null
  remainingJobs: number | null
  failed: { pool: string; org: string; reason: string }[] | null
  actions?: { lift: Action }
}

export type Runner = Observed & {
  namespace: string
  name: string
  kind: string
  pool: string
  org: string
  state: 'Failed' | 'Outdated' | 'Pending' | 'Starting' | 'Ending' | 'Busy' | 'Idle' | 'Finished'
  reason: string
  message: string
  failures: number | null
  lastFailure: string | null
  forgeId: number | null
  forgeName: string
  job: { id: string; name: string; repository: string; workflow: string; run: number | null; url: string; started: string | null } | null
  pod: { phase: string; node: string; reason: string; message: string; started: string | null; containers: Container[] | null } | null
  created: string
  actions?: { log: Action }
}
export type Container = { name: string; image: string; init: boolean; state: string; reason: string; message: string; ready: boolean; restarts: number; exitCode: number | null; started: string | null }
export type PoolEvent = { type: string; reason: string; message: string; kind: string; name: string; by: string; count: number; first: string; last: string }
export type PoolConfig = { id: string; settings: { name: string; value: string; from: string; over: { value: string; from: string }[] | null }[] | null }
export type Diagnosis = { id: string; state: string; findings: { severity: 'error' | 'warning'; cause: string; evidence: string; next: string }[] | null }
export type Series = { name: string; unit: string; labels: Record<string, string> | null; timestamps: string[]; values: (number | null)[]; summary: { last: number | null; min: number | null; max: number | null } }
export type Marker = { at: string; kind: string; text: string; ref: string }
export type Metrics = { of: string; window: string; stepSeconds: number; series: Series[] | null; markers: Marker[] | null }

export type Forge = Observed & {
  name: string
  type: string
  url: string
  version: string | null
  reachable: boolean | null
  rateLimit: { remaining: number; resetAt: string | null } | null
  conditions: Condition[] | null
}

export type Drift = Observed & {
  org: string
  forge: string
  pool: string
  object: string
  subject: string
  field: string
  kind: 'git' | 'forge' | 'actual'
  severity: 'info' | 'warning' | 'error'
  want: string | null
  have: string | null
  evidence: string
  next: string
  firstSeen: string
  explainedBy: string
  unconfirmed: boolean
  ignoredUntil: string | null
  ignoredBy: string
  ignoredReason: string
  actions?: { ignore: Action; unignore: Action }
}

export type DriftIgnored = { drift: Drift; dryRun: boolean }
export type DriftRefreshed = { looks: { source: string; asked: boolean; message: string }[] }

export type Change = Observed & {
  org: string
  kind: string
  name: string
  file: string
  number: number
  url: string
  branch: string
  base: string
  head: string
  state: 'open' | 'approved' | 'merging' | 'merged' | 'applied' | 'closed'
  proposer: string
  title: string
  reason: string
  risk: Risk
  platform: boolean
  diff: string
  diffOf: string
  stale: boolean
  checks: { name: string; state: string; url: string }[] | null
  approvals: { by: string; at: string; head: string }[] | null
  mergeBlocked: string
  mergedBy: string
  openedAt: string
  actions?: { approve: Action; merge: Action; close: Action }
}
export type Risk = { level: 'low' | 'medium' | 'high'; why: string[] | null }
export type Preview = { file: string; base: string; version: string; diff: string; risk: Risk; org: string; platform: boolean; refused: string; rules: { org: string; pool: string; reason: string; message: string }[] | null; note?: string; open: string }

export type HoldCreated = { hold: Hold; created: boolean; dryRun: boolean; targets: number | null }
export type HoldLifted = { lifted: string[] | null; remaining: string[] | null; dryRun: boolean }
export type HoldRescheduled = { hold: Hold; dryRun: boolean }
export type Asked = { id: string; verb: string; object: string; args: Record<string, string> | null; phrase: string; targets: number | null; until: string }

export type Kinds = {
  pool: Pool
  enrollment: Enrollment
  hold: Hold
  forge: Forge
  change: Change
  drift: Drift
  cluster: Cluster
  signin: Signin
  tailnet: Tailnet
  gateway: Gateway
  route: Route
  proxygroup: ProxyGroup
  adapter: Adapter
}
export type Kind = keyof Kinds

export type Revocation = { id: string; dryRun: boolean; deleted: boolean; refusedBy: string | null }

export type Source = { name: string; status: 'ok' | 'degraded' | 'down'; observedAt?: string | null; since?: string; message: string }

export type Exposure = { name: string; address: string | null; access: string; source: string; state: 'ok' | 'degraded' | 'down'; problem: string }

export type Tally = { total: number; states: Record<string, number> }
export type Overview = {
  clusters: Tally | null
  signins: Tally | null
  tailnets: Tally | null
  gateways: Tally | null
  routes: Tally | null
  proxygroups: Tally | null
  adapters: Tally | null
  pools: Tally | null
  enrollments: Tally | null
  holds: Tally | null
  forges: Tally | null
  changes: Tally | null
  drift: Tally | null
  attention: { severity: 'error' | 'warning'; kind: Kind; id: string; reason: string; message: string }[]
  more: number
  hidden: Kind[]
}

export type Me = {
  login: string
  displayName: string
  node: string
  tags: string[]
  tailnet: string
  via: string
  roles: { role: string; orgs: string[] | null; source: string }[] | null
  verbs: Record<string, string[]> | null
  warnings: string[] | null
}

export type AuditEntry = {
  ts: string
  requestId: string
  actor?: { login?: string; node?: string; nodeId?: string; tags?: string[]; via?: string }
  surface?: string
  tool?: string
  verb: string
  org?: string
  object?: string
  args?: Record<string, string>
  reason?: string
  result: string
  code?: string
  error?: string
}

export type Meta = {
  requestId: string
  generatedAt: string
  revision: string
  page?: { next: string; limit: number; total: number | null } | null
  sources?: Source[] | null
}

export type Fault = {
  code: string
  message: string
  advice?: string[]
  field?: string
  needed?: { verb: string; org: string } | null
  have?: string[] | null
  seen?: { login: string; node: string; via: string } | null
  confirm?: { phrase?: string; id?: string; path?: string; targets?: number; until: string } | null
  retryAfterSeconds?: number
}

export type Envelope<T> = { apiVersion: string; kind: string; data: T | null; meta: Meta; error: Fault | null }
