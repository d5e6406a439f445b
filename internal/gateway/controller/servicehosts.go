package controller

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/utils/ptr"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gateway/workload"
	"github.com/tailplane/tailplane/internal/kube/conditions"
)

// reconcileHosts approves the group's relays as hosts of the service and counts them.
func (l *serviceReconciliation) reconcileHosts(ctx context.Context, t *v1alpha1.TailscaleTailnet, carrying int, exposed bool) error {
	if carrying == 0 {
		l.ready = conditions.False(
			v1alpha1.ReasonNoReadyEndpoints,
			"no relay carries the service: none is ready, or the backend has no endpoint",
		)
	}
	st := l.object.Status.VIP
	if !exposed || st == nil || len(st.Addresses) == 0 || !l.programmed.IsTrue() {
		return nil
	}
	g, err := l.carryingGroup(ctx)
	if err != nil {
		return err
	}
	devices := deviceIDs(g)
	if len(devices) == 0 {
		st.Hosts = nil
		return nil
	}
	m := l.vipState(t.Name, st.Name)
	if key := strings.Join(devices, " "); m.hosts != key || st.Hosts == nil {
		done, err := l.approveHosts(ctx, t.Name, st, devices)
		if err != nil {
			reason, wait := failureReason(err)
			l.requeueAt(l.Now().Add(wait))
			l.degraded = conditions.True(reason, conditions.Truncate(err.Error(), maxServiceMessage))
			l.warn(reason, l.degraded.Message)
		} else if done {
			m.hosts, m.awaited = key, ""
		} else {
			if await := fmt.Sprint(key, carrying); m.awaited != await {
				m.awaited, m.queries, m.nextQuery = await, 0, time.Time{}
			}
			if now := l.Now(); !now.Before(m.nextQuery) { // a reconcile for another reason must not increase the wait
				m.nextQuery = now.Add(min(hostsRequeue<<min(m.queries, 8), refusedRequeue)) // an administrator may have to approve
				m.queries++
			}
			l.requeueAt(m.nextQuery)
		}
	}
	if carrying > 0 && (st.Hosts == nil || st.Hosts.Approved == 0) {
		l.ready = conditions.False(v1alpha1.ReasonAwaitingApproval, "the tailnet has approved no relay as a host of "+st.Name)
	}
	return nil
}

// deviceIDs returns the stable IDs of a group's relays.
func deviceIDs(g *v1alpha1.TailscaleProxyGroup) (ids []string) {
	g = cmp.Or(g, &v1alpha1.TailscaleProxyGroup{})
	for _, d := range g.Status.Devices {
		if d.NodeID != "" && d.Ordinal < workload.Replicas(g) {
			ids = append(ids, d.NodeID)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// approveHosts approves the relays that need approval. done is true when all relays of the group are
// hosts.
func (l *serviceReconciliation) approveHosts(
	ctx context.Context,
	tailnet string,
	st *v1alpha1.VIPStatus,
	devices []string,
) (done bool, err error) {
	api, err := l.apiClient(tailnet)
	if err != nil {
		return false, err
	}
	all, err := api.Hosts(ctx, st.Name)
	if err != nil {
		return false, err
	}
	count := v1alpha1.VIPHosts{}
	for _, h := range all {
		if !slices.Contains(devices, h.Device) {
			continue // belongs to another operator or is unknown
		}
		if !h.Approved && ptr.Deref(l.object.Spec.VIPService.AutoApprove, true) {
			if err := api.ApproveHost(ctx, st.Name, h.Device); err != nil {
				return false, err
			}
			h.Approved = true
		}
		if h.Configured {
			count.Configured++
		}
		if h.Approved {
			count.Approved++
		}
	}
	st.Hosts = &count
	return int(count.Approved) == len(devices) && int(count.Configured) == len(devices), nil
}
