// The types of the API, under the dashboard's names. `npm run generate` writes all types into api.gen.ts from the
// OpenAPI document of the server. null means unknown.
import type { EnvelopeOfEmpty, Responses, StreamEvent } from './api.gen.ts'

export type {
  Adapter,
  Asked,
  Change,
  Cluster,
  Condition,
  Connection,
  Drift,
  Enrollment,
  Forge,
  Gateway,
  Hold,
  Marker,
  Me,
  Meta,
  Overview,
  Pool,
  Preview,
  ProxyGroup,
  Recording,
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
  Created as HoldCreated,
  Entry as AuditEntry,
  Outcome as EnrollmentOutcome,
  Refreshed as DriftRefreshed,
  Refused as Fault,
} from './api.gen.ts'

/** An operation of the API, such as "POST /holds", and its response. */
export type Operation = keyof Responses
export type Response<O extends Operation> = Responses[O]

/** The path of an operation that reads, such as "/holds/{name}", and the data of its response. */
export type Path = { [O in Operation]: O extends `GET ${infer P}` ? P : never }[Operation]
export type Data<P extends Path> = Responses[`GET ${P}`]['data']

/** The paths that list the objects of a kind. */
export type ListOf<K extends Kind> = { [P in Path]: Data<P> extends Kinds[K][] | null ? P : never }[Path]

/** A response, without its data. */
export type Envelope = Omit<EnvelopeOfEmpty, 'data'>

/** The data of the events of the stream, by the event's name. */
export type EventData = { [E in StreamEvent as E['event']]: E['data'] }

/** The objects by kind. There is no list of all runners. */
export type Kinds = { [E in StreamEvent as E['event'] extends `${infer K}.upsert` ? Exclude<K, 'runner'> : never]: E['data'] }
export type Kind = keyof Kinds
