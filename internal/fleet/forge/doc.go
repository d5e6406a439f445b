// Package forge is the client of GitHub and GitLab. It manages runners, runner groups, and changes
// by pull or merge request. It calls the libraries of both forges over the strict transport of
// [httptransport], and classifies each response itself:
//
//   - Law 7: an incomplete answer is an error with a class, never an empty list and never
//     "gone".
//   - Law 8: no error, log line or dump contains a credential.
//
// Each client has one credential for one organisation, group or repository. Rate limits, pauses,
// tokens and cached pages belong to one client. The constructors send no request.
// docs/decisions/forge-clients.md says which parts of the libraries the clients rely on.
package forge
