package forge

import (
	"github.com/tailplane/tailplane/internal/fleet/forge/failure"
	"github.com/tailplane/tailplane/internal/fleet/forge/secret"
)

// A Secret is a credential, or the token of a runner. It does not print.
type Secret = secret.Text

// NewSecret returns the secret of a text.
func NewSecret(text string) Secret { return secret.New(text) }

// A Class says what a failure means for what is done next.
type Class = failure.Class

// The classes, which [failure] explains.
const (
	Refused     = failure.Refused
	Forbidden   = failure.Forbidden
	NotFound    = failure.NotFound
	Conflict    = failure.Conflict
	Invalid     = failure.Invalid
	RateLimited = failure.RateLimited
	Unavailable = failure.Unavailable
)

// An Error is why a forge did not do what was asked.
type Error = failure.Error

// ClassOf returns the class of an error: none for nil, and Unavailable for what is
// no *[Error].
func ClassOf(err error) Class { return failure.ClassOf(err) }

// gone takes for success that something is not there any more.
func gone(err error) error {
	if ClassOf(err) == NotFound {
		return nil
	}
	return err
}

// clean makes a text of somebody else's into what a condition or a log line may
// hold, without the secrets that are known here or look like one.
func clean(text string, secrets ...Secret) string { return secret.Clean(text, secrets...) }
