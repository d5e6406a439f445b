// Package plane implements the operator plane: one tailnet-only API that shows the current state of the installation and accepts changes to
// it. It keeps law 7: the plane reports unknown state as unknown, and never as a sample, a zero or a shorter list.
//
//	sources --Set, Replace, Report--> Store --List, Get--> operations (one envelope)
//	                                    |
//	                                    +--Since, Changed--> event stream
//
// It has one service for each part of the API. Main connects the sources to the store and to the services.
//
//   - [Service]: clusters, sign-ins, gateways and adapters, the overview, the audit log and the event stream.
//   - [FleetService]: the CI runners of each organisation, their forges, drift, and holds, which pause runners. It keeps law 2: actions on
//     many runners need a confirmation, and callers pause and lift only for organisations that their role covers. The fleet controllers
//     apply the holds, and the plane reports a hold as confirmed only when the fleet has confirmed it.
//   - [RunnerService]: single runners with their jobs, events, logs and problems. It keeps law 10: text from a job, a repository or a log
//     is data. It changes nothing.
//   - [ChangeService]: changes of the fleet's configuration by pull request. People preview a change, propose it, approve changes of
//     others, and merge them. The tool that applies the repository brings a merged change into the cluster.
//   - [EnrollmentService]: requests for runners of an organisation, and their approval, rotation and end. People must not approve what
//     they requested. Where git approves, every request becomes a pull request.
//   - [MetricsService]: metrics of runners over time, from an optional Prometheus. An unmeasured value is null, never 0. Callers never
//     supply PromQL: the queries are templates, and one function quotes the values in them.
//
// [DriftCheck] compares the configuration repository with the cluster. While either does not respond, the last findings stay, with their
// age. It only reports drift and never corrects it.
package plane
