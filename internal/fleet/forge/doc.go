// Package forge is the client of GitHub and GitLab: runners, runner groups, and changes
// by pull or merge request. It calls the libraries of both forges over the strict
// transport of [httptransport], and judges each answer itself:
//
//   - Law 7: what was not answered whole is an error with a class, never an empty list and
//     never "gone".
//   - Law 8: no error, log line or dump holds a credential.
//
// Each client has one credential for one organisation, group or repository. Limits,
// pauses, tokens and remembered pages belong to one client. The constructors send no
// request. docs/decisions/forge-clients.md says what a library is trusted with.
package forge
