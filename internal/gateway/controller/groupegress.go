package controller

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gateway"
	"github.com/tailplane/tailplane/internal/relay/config"
	"github.com/tailplane/tailplane/internal/tailnet/tsapi"
)

// egressServices returns the services that have ports, with their targets. If the API does not answer, the
// known targets stay.
func (l *groupReconciliation) egressServices(
	ctx context.Context,
	table gateway.PortTable,
	last map[string][]config.Target,
) (map[string]config.EgressService, map[string][]config.Target, error) {
	services, targets := map[string]config.EgressService{}, map[string][]config.Target{}
	for _, p := range table.Ports {
		if !p.Until.IsZero() {
			continue
		}
		s := services[p.Service]
		s.Ports = append(
			s.Ports,
			config.Port{Protocol: config.Protocol(strings.ToLower(p.Protocol)), Match: p.MatchPort, Target: p.TargetPort},
		)
		services[p.Service] = s
	}
	for _, key := range slices.Sorted(maps.Keys(services)) {
		s := services[key]
		t, real, err := l.serviceTarget(ctx, key)
		if err != nil {
			return nil, nil, err
		}
		list, err := l.resolveTargets(ctx, t, last[key])
		if err != nil {
			return nil, nil, err
		}
		if len(list) == 0 {
			delete(services, key) // the destination is unknown
			l.omitted = append(l.omitted, key+" has no known destination")
			continue
		}
		if real != nil {
			s.HealthCheckEndpoint = fmt.Sprintf(
				"http://%s.%s.svc.%s:%d/healthz",
				gateway.GroupServiceName(objectName(real)),
				l.group.Namespace,
				l.ClusterDomain,
				v1alpha1.HealthPort,
			)
		}
		s.TailnetTarget, targets[key] = list[0], list
		services[key] = s
	}
	return services, targets, nil
}

// serviceTarget returns the target of the service with this key: the target of the TailscaleService, or
// the group's own target. A service for which the group was created has both; the group's target
// is then used, because it is more detailed.
func (l *groupReconciliation) serviceTarget(ctx context.Context, key string) (v1alpha1.TailnetTarget, *v1alpha1.TailscaleService, error) {
	own := cmp.Or(l.group.Spec.TailnetTarget, &v1alpha1.TailnetTarget{})
	ns, name, _ := strings.Cut(key, ".")
	s, err := find[v1alpha1.TailscaleService](ctx, l.cache, client.ObjectKey{Namespace: ns, Name: name})
	if err != nil || s == nil || s.Spec.Target == nil || l.result.Services[objectName(s)].Group != objectName(l.group) {
		return *own, nil, wrapError(err, "get the service %s", key)
	}
	t := v1alpha1.TailnetTarget{
		ServiceName: s.Spec.Target.ServiceName,
		Tags:        s.Spec.Target.Tags,
		FQDN:        s.Spec.Target.FQDN,
		IP:          s.Spec.Target.IP,
	}
	if own.ServiceName != "" && strings.TrimPrefix(own.ServiceName, "svc:") == strings.TrimPrefix(t.ServiceName, "svc:") {
		t = *own
	}
	return t, s, nil
}

// resolveTargets returns the current nodes and services of a target: an address or a name, the named
// service if it exists, otherwise all devices with all tags.
func (l *groupReconciliation) resolveTargets(ctx context.Context, t v1alpha1.TailnetTarget, last []config.Target) ([]config.Target, error) {
	switch {
	case t.IP != "":
		return []config.Target{{IP: t.IP}}, nil
	case t.FQDN != "":
		return []config.Target{{FQDN: t.FQDN}}, nil
	case t.ServiceName == "" && len(t.Tags) == 0:
		return nil, nil
	case t.ServiceName == "":
		return []config.Target{{Tags: t.Tags}}, nil
	}
	label, ok := gateway.ServiceLabel(t.ServiceName)
	if !ok {
		return nil, nil
	}
	var vip []config.Target
	if suffix := l.tailnetDomain(); suffix != "" {
		vip = []config.Target{{FQDN: label + "." + suffix}}
	}
	service, known := l.vipService(ctx, "svc:"+label)
	if vip == nil && service != nil && len(service.Addrs) > 0 {
		vip = []config.Target{{IP: service.Addrs[0].String()}} // use the address until the tailnet's domain is known
	}
	switch {
	case service != nil:
		return vip, nil
	case !known && len(last) > 0:
		return last, nil
	case len(t.Tags) > 0:
		return []config.Target{{Tags: t.Tags}}, nil
	}
	return vip, nil // the service may be created later
}

// tailnetDomain returns the tailnet's domain, or "" if it is unknown.
func (l *groupReconciliation) tailnetDomain() string {
	if l.tailnet == nil || l.tailnet.Status.TailnetInfo == nil {
		return ""
	}
	return l.tailnet.Status.TailnetInfo.Name
}

// vipService returns a service of the tailnet, or nil if there is none. known is false if this is unknown. It uses
// the same list as the tailnet's check and discovery.
func (l *groupReconciliation) vipService(ctx context.Context, name string) (service *tsapi.Service, known bool) {
	if l.api == nil || !l.tailnetReady() {
		return nil, false
	}
	interval := cmp.Or(l.tailnet.Spec.SyncInterval.Duration, maxRequeueAfter/2)
	l.requeueAt(l.Now().Add(interval))
	list, err := l.api.Services(ctx, interval)
	if err != nil || list.Refused != nil {
		l.Log.Debug("services of the tailnet are not known", "group", l.group.Name, "err", err)
		return nil, false
	}
	return findVIP(list.Services, name), true
}
