// The types of the API, under the dashboard's names. `npm run generate` writes all types into api.gen.ts from the
// OpenAPI document of the server. null means unknown.
import type { EnvelopeOfEmpty, StreamEvent } from './api.gen.ts'

export type {
  Action,
  Adapter,
  Adoption,
  Asked,
  Change,
  Cluster,
  Condition,
  Diagnosis,
  Drift,
  Enrollment,
  Exposure,
  Forge,
  Gateway,
  Hold,
  Marker,
  Me,
  Meta,
  Metrics,
  Overview,
  Pool,
  Preview,
  ProxyGroup,
  Revocation,
  Risk,
  Route,
  Runner,
  Scope,
  Series,
  Signin,
  Source,
  Tailnet,
  Tally,
} from './api.gen.ts'
export type {
  Config as PoolConfig,
  Created as HoldCreated,
  Entry as AuditEntry,
  Event as PoolEvent,
  Ignoring as DriftIgnored,
  Lifted as HoldLifted,
  Outcome as EnrollmentOutcome,
  Refreshed as DriftRefreshed,
  Refused as Fault,
  Rescheduled as HoldRescheduled,
} from './api.gen.ts'

/** A response: data, or the error. */
export type Envelope<T> = Omit<EnvelopeOfEmpty, 'data'> & { data: T | null }

/** The data of the events of the stream, by the event's name. */
export type EventData = { [E in StreamEvent as E['event']]: E['data'] }

/** The objects by kind. There is no list of all runners. */
export type Kinds = { [E in StreamEvent as E['event'] extends `${infer K}.upsert` ? Exclude<K, 'runner'> : never]: E['data'] }
export type Kind = keyof Kinds
