package kube

import (
	"fmt"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// fleetLease is the Lease that the fleet's leader renews every two seconds.
const fleetLease = "tailplane-fleet"

// maxFleetSilence is the maximum age of the last renewal. Another replica takes over after 15 s.
const maxFleetSilence = time.Minute

// fleetActivity records when the fleet was last active. A fleet without leader election has no Lease, which is not an error.
type fleetActivity struct {
	mu      sync.Mutex
	renewed time.Time // zero: no renewal seen
	held    bool
}

func (p *fleetActivity) set(o client.Object) {
	l, ok := o.(*coordinationv1.Lease)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.renewed, p.held = (time.Time{}), false; ok && l.Spec.RenewTime != nil {
		p.renewed, p.held = l.Spec.RenewTime.Time, l.Spec.HolderIdentity != nil && *l.Spec.HolderIdentity != ""
	}
}

func (p *fleetActivity) remove(o client.Object) {}

func (p *fleetActivity) replace(all []client.Object) {
	for _, o := range all {
		p.set(o)
	}
}

// stale returns what is wrong with the fleet's data, or "".
func (p *fleetActivity) stale(now time.Time) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.renewed.IsZero() || p.held && now.Sub(p.renewed) <= maxFleetSilence {
		return ""
	}
	return fmt.Sprintf("The fleet has not run since %s. The runners show its last report, and no controller changes them.", p.renewed.UTC().Format(time.RFC3339))
}
