package signin

import (
	"fmt"
	"time"

	"github.com/tailplane/tailplane/internal/problem"
)

// maxSessions is the number of live sign-ins of one device, without the default session.
const maxSessions = 20

// outlived reports whether a sign-in can no longer be extended by half of period. A new sign-in then replaces it, so that a login every
// morning gives a whole day.
func (d *Service) outlived(s Signin, period time.Duration) bool {
	return d.MaxLife > 0 && s.Created.Add(d.MaxLife).Sub(d.Now()) < period/2
}

// device returns what limits count as one device: the device, and the job or the person that a token names on it.
func (o Owner) device() [3]string { return [3]string{o.DeviceID, o.Issuer, o.Subject} }

// limitSessions rejects a new sign-in of an owner that has too many. The sessions of a device count as one device, and the
// default session does not count among them, so that shells that were killed lock nobody out of it.
func (d *Service) limitSessions(o Owner) error {
	devices, sessions := map[[3]string]bool{}, 0
	for _, s := range d.Store.ListCached(o.Login) {
		switch {
		case s.Deleting || s.State(d.Now()) == Ended:
		case s.Owner.device() != o.device():
			devices[s.Owner.device()] = true
		case s.Owner.Session != "":
			sessions++
		}
	}
	switch {
	case len(devices) >= d.MaxPerLogin:
		return problem.New(problem.TooManySignins, fmt.Sprintf("%s is already signed in from %d devices.", o.Login, d.MaxPerLogin),
			"Sign out on a device that is not in use: tka logout").WithRetryAfter(time.Minute)
	case o.Session != "" && sessions >= maxSessions:
		return problem.New(problem.TooManySignins, fmt.Sprintf("This device already has %d sessions besides the default one.", maxSessions),
			"List them, and end those that are not in use: tka status; tka logout --session NAME").WithRetryAfter(time.Minute)
	}
	return nil
}
