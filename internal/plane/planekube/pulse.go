package planekube

import (
	"fmt"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// fleetLease is the Lease that the fleet's leader renews every two seconds.
const fleetLease = "tailplane-fleet"

// quiet is the maximum age of the last renewal. Another replica takes over after 15 s.
const quiet = time.Minute

// pulse records when the fleet was last active. A fleet without leader election has no Lease, which is not an error.
type pulse struct {
	mu   sync.Mutex
	at   time.Time // zero: no renewal seen
	held bool
}

func (p *pulse) put(o client.Object) {
	l, ok := o.(*coordinationv1.Lease)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.at, p.held = (time.Time{}), false; ok && l.Spec.RenewTime != nil {
		p.at, p.held = l.Spec.RenewTime.Time, l.Spec.HolderIdentity != nil && *l.Spec.HolderIdentity != ""
	}
}

func (p *pulse) remove(o client.Object) {}

func (p *pulse) replace(all []client.Object) {
	for _, o := range all {
		p.put(o)
	}
}

// stale returns what is wrong with the fleet's data, or "".
func (p *pulse) stale(now time.Time) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.at.IsZero() || p.held && now.Sub(p.at) <= quiet {
		return ""
	}
	return fmt.Sprintf("The fleet is not at work since %s: what is shown of runners is what it said last, and nothing changes them.", p.at.UTC().Format(time.RFC3339))
}
