package planekube

import (
	"fmt"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// fleetLease is how the fleet says that it is at work: whichever of its replicas is
// renews it every two seconds.
const fleetLease = "tailplane-fleet"

// quiet is how long the fleet may say nothing: another replica takes over after 15 s.
const quiet = time.Minute

// A pulse is when the fleet was at work last. A fleet without an election says nothing of
// it, which is no trouble.
type pulse struct {
	mu   sync.Mutex
	at   time.Time // zero: it has never said
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

// stale says what is wrong with what the fleet has said of runners.
func (p *pulse) stale(now time.Time) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.at.IsZero() || p.held && now.Sub(p.at) <= quiet {
		return ""
	}
	return fmt.Sprintf("The fleet is not at work since %s: what is shown of runners is what it said last, and nothing changes them.", p.at.UTC().Format(time.RFC3339))
}
