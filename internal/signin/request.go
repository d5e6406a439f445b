package signin

// A RequestRef names the access request that a sign-in uses.
type RequestRef struct {
	Name   string // also the session of the sign-in
	UID    string
	Digest string // of what was approved
}
