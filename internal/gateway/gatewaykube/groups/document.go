package groups

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gateway"
	"github.com/tailplane/tailplane/internal/gateway/portmap"
	"github.com/tailplane/tailplane/internal/gateway/workload"
	"github.com/tailplane/tailplane/internal/relay/document"
)

// pingsEach is the number of pings that a draining relay sends per relay of the group, so that the
// pings probably reach each of them.
const pingsEach = 3

// document returns the data of the group's ConfigMap for the relays.
func (l *look) document(ctx context.Context, table portmap.Table, current *corev1.ConfigMap) (map[string]string, error) {
	file := document.File{Tailnet: document.Tailnet{ControlURL: l.controlURL(), HostnamePrefix: l.hostnamePrefix(), Tags: l.tags()}}
	if d := l.group.Spec.DrainTimeout; d != nil {
		file.DrainTimeout = d.Duration.String()
	}
	data := map[string]any{}
	if l.group.Spec.Type == v1alpha1.Egress {
		services, targets, err := l.egress(ctx, table, lastTargets(current))
		if err != nil {
			return nil, err
		}
		file.Targets = targets
		data[document.EgressKey] = services
	} else {
		ingress, err := l.ingress(ctx)
		if err != nil {
			return nil, err
		}
		file.Ingress = ingress.relay
		data["serve-config"], data["ingress-config.json"] = ingress.serve, ingress.mappings
	}
	data[document.RelayKey] = file
	out := map[string]string{}
	for key, value := range data {
		text, err := json.Marshal(value)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
		out[key] = string(text)
	}
	if l.group.Spec.Type == v1alpha1.Egress {
		out[document.PingsKey] = strconv.Itoa(pingsEach * int(workload.Replicas(l.group)))
		out[portsKey] = string(table.Encode())
	}
	return out, nil
}

// lastTargets returns the targets in the current configuration of the relays.
func lastTargets(current *corev1.ConfigMap) map[string][]document.Target {
	var file document.File
	if current == nil || json.Unmarshal([]byte(current.Data[document.RelayKey]), &file) != nil {
		return nil
	}
	return file.Targets
}

// withoutServices removes all services from relay.json and keeps the node settings.
func withoutServices(text string) (string, error) {
	var file document.File
	if err := json.Unmarshal([]byte(text), &file); err != nil {
		return "", fmt.Errorf("%s: %w", document.RelayKey, err)
	}
	file.Targets, file.Ingress = nil, nil
	out, err := json.Marshal(file)
	return string(out), err
}

// egress returns the services that have ports, with their targets. If the API does not answer, the
// known targets stay.
func (l *look) egress(ctx context.Context, table portmap.Table, last map[string][]document.Target) (map[string]document.EgressService, map[string][]document.Target, error) {
	services, targets := map[string]document.EgressService{}, map[string][]document.Target{}
	for _, p := range table.Ports {
		if !p.Until.IsZero() {
			continue
		}
		s := services[p.Service]
		s.Ports = append(s.Ports, document.Port{Protocol: document.Protocol(strings.ToLower(p.Protocol)), Match: p.MatchPort, Target: p.TargetPort})
		services[p.Service] = s
	}
	for _, key := range slices.Sorted(maps.Keys(services)) {
		s := services[key]
		t, real, err := l.target(ctx, key)
		if err != nil {
			return nil, nil, err
		}
		list, err := l.targets(ctx, t, last[key])
		if err != nil {
			return nil, nil, err
		}
		if len(list) == 0 {
			delete(services, key) // the destination is unknown
			l.troubles = append(l.troubles, key+" leads nowhere that is known")
			continue
		}
		if real != nil {
			s.HealthCheckEndpoint = fmt.Sprintf("http://%s.%s.svc.%s:%d/healthz", gateway.GroupServiceName(nameOf(real)), l.group.Namespace, l.ClusterDomain, v1alpha1.HealthPort)
		}
		s.TailnetTarget, targets[key] = list[0], list
		services[key] = s
	}
	return services, targets, nil
}

// target returns the target of the service with this key: the target of the TailscaleService, or
// the group's own target. A service for which the group was created has both; the group's target
// is then used, because it is more detailed.
func (l *look) target(ctx context.Context, key string) (v1alpha1.TailnetTarget, *v1alpha1.TailscaleService, error) {
	own := l.group.Spec.TailnetTarget
	ns, name, _ := strings.Cut(key, ".")
	s := &v1alpha1.TailscaleService{}
	err := l.cache.Get(ctx, client.ObjectKey{Namespace: ns, Name: name}, s)
	switch {
	case err == nil && s.Spec.Target != nil && l.result.Services[nameOf(s)].Group == nameOf(l.group):
	case err == nil || apierrors.IsNotFound(err):
		if own == nil {
			return v1alpha1.TailnetTarget{}, nil, nil
		}
		return *own, nil, nil
	default:
		return v1alpha1.TailnetTarget{}, nil, fmt.Errorf("look up the service %s: %w", key, err)
	}
	t := v1alpha1.TailnetTarget{ServiceName: s.Spec.Target.ServiceName, Tags: s.Spec.Target.Tags, FQDN: s.Spec.Target.FQDN, IP: s.Spec.Target.IP}
	if own != nil && own.ServiceName != "" && strings.TrimPrefix(own.ServiceName, "svc:") == strings.TrimPrefix(t.ServiceName, "svc:") {
		t = *own
	}
	return t, s, nil
}

// targets returns the current nodes and services of a target: an address or a name, the named
// service if it exists, otherwise all devices with all tags.
func (l *look) targets(ctx context.Context, t v1alpha1.TailnetTarget, last []document.Target) ([]document.Target, error) {
	switch {
	case t.IP != "":
		return []document.Target{{IP: t.IP}}, nil
	case t.FQDN != "":
		return []document.Target{{FQDN: t.FQDN}}, nil
	case t.ServiceName == "" && len(t.Tags) == 0:
		return nil, nil
	case t.ServiceName == "":
		return []document.Target{{Tags: t.Tags}}, nil
	}
	label, ok := gateway.ServiceLabel(t.ServiceName)
	if !ok {
		return nil, nil
	}
	var vip []document.Target
	if suffix := l.suffix(); suffix != "" {
		vip = []document.Target{{FQDN: label + "." + suffix}}
	}
	there, known, addrs := l.vipService(ctx, "svc:"+label)
	for _, a := range addrs {
		if vip == nil {
			vip = []document.Target{{IP: a}} // use the address until the tailnet's domain is known
		}
	}
	switch {
	case known && there:
		return vip, nil
	case !known && len(last) > 0:
		return last, nil
	case len(t.Tags) > 0:
		return []document.Target{{Tags: t.Tags}}, nil
	}
	return vip, nil // the service may be created later
}

// suffix returns the tailnet's domain, or "" if it is unknown.
func (l *look) suffix() string {
	if l.tailnet == nil || l.tailnet.Status.TailnetInfo == nil {
		return ""
	}
	return l.tailnet.Status.TailnetInfo.Name
}

// vipService reports whether the tailnet has a service. known is false if this is unknown. It uses
// the same list as the tailnet's check and discovery.
func (l *look) vipService(ctx context.Context, name string) (there, known bool, addrs []string) {
	if l.api == nil || !l.tailnetReady() {
		return false, false, nil
	}
	interval := cmp.Or(l.tailnet.Spec.SyncInterval.Duration, longestNap/2)
	l.again(l.Now().Add(interval))
	list, err := l.api.Services(ctx, interval)
	if err != nil || list.Refused != nil {
		l.Log.Debug("services of the tailnet are not known", "group", l.group.Name, "err", err)
		return false, false, nil
	}
	for _, s := range list.Services {
		if s.Name != name {
			continue
		}
		for _, a := range s.Addrs {
			addrs = append(addrs, a.String())
		}
		return true, true, addrs
	}
	return false, true, nil
}
