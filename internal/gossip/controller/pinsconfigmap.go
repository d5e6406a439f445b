// Package controller stores in the cluster what discovery must not forget, and publishes what other programs read: pins, the list of
// members and ClusterProfile objects. It keeps law 2: none of this is secret, and none of it grants access.
//
// The package needs these rights, all of them in one namespace:
//
//	configmaps tailplane-gossip-pins, tailplane-members    get, update    by name
//	leases.coordination.k8s.io tailplane-access            get, update    by name
//
// and, with ClusterProfiles on, in their namespace:
//
//	clusterprofiles.multicluster.x-k8s.io                  list, create, update, delete
//	clusterprofiles.multicluster.x-k8s.io/status           update
//
// The manifests create the first three objects, empty. The package reads the schema of ClusterProfile under /openapi/v3, which every
// account may read (system:discovery). Reading its CustomResourceDefinition would need a right on the whole cluster.
package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/internal/gossip"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/kube"
)

// PinsConfigMap is the ConfigMap that stores pins, as JSON under pinsData.
const (
	PinsConfigMap = "tailplane-gossip-pins"
	pinsData      = "pins.json"
)

// Pins is the ConfigMap that the access servers of one cluster share. It needs get and update on that one ConfigMap. An administrator may
// delete an entry: servers that merely remember the entry do not write it again.
type Pins struct {
	configMap
	node string

	mu    sync.Mutex
	known gossip.Memory // as last read or written
}

// storedPins is the form in which pins are stored.
type storedPins struct {
	Clusters    map[string]httpapi.PublicKey `json:"clusters"`    // keys by cluster id
	Nodes       map[string]string            `json:"nodes"`       // cluster ids by stable node id
	Proxies     map[string]string            `json:"proxies"`     // host names of access proxies by cluster id
	Absent      map[string]int64             `json:"absent"`      // by node of nodes: Unix seconds since when the tailnet does not have it
	Generations map[string]uint64            `json:"generations"` // the greatest generation of each server of this cluster
}

// maxGenerations bounds how many servers of this cluster are remembered: each node that was ever created for one has its own id.
const maxGenerations = 256

// NewPins returns the pins of the node with that stable id. It makes no request yet.
func NewPins(config *rest.Config, namespace, node string) (*Pins, error) {
	m, err := newConfigMap(config, namespace, PinsConfigMap)
	return &Pins{configMap: m, node: node}, err
}

// A configMap is a ConfigMap that the manifests create. Its client knows only ConfigMaps.
type configMap struct {
	client client.Client
	key    client.ObjectKey
}

func newConfigMap(config *rest.Config, namespace, name string) (configMap, error) {
	c, err := kube.NewConfigMapClient(config)
	return configMap{c, client.ObjectKey{Namespace: namespace, Name: name}}, err
}

func (m configMap) get(ctx context.Context) (*corev1.ConfigMap, error) {
	cm := new(corev1.ConfigMap)
	if err := m.client.Get(ctx, m.key, cm); err != nil {
		return nil, kube.ExplainManifestObject("read", "ConfigMap", m.key, err)
	}
	return cm, nil
}

// set writes a value to cm, as it was read. A conflict with another client is returned as it is.
func (m configMap) set(ctx context.Context, cm *corev1.ConfigMap, key, value string) error {
	if cm.Data == nil {
		cm.Data = map[string]string{}
	}
	cm.Data[key] = value
	err := m.client.Update(ctx, cm)
	if err != nil && !apierrors.IsConflict(err) {
		return kube.ExplainManifestObject("write", "ConfigMap", m.key, err)
	}
	return err
}

// Load returns the stored pins.
func (p *Pins) Load(ctx context.Context) (gossip.Memory, error) {
	_, s, err := p.read(ctx)
	if err != nil {
		return gossip.Memory{}, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.known = gossip.Memory{Generation: s.Generations[p.node], Clusters: s.Clusters, Nodes: s.Nodes, Proxies: s.Proxies, Absent: s.Absent}
	return clone(p.known), nil
}

func clone(m gossip.Memory) gossip.Memory {
	m.Clusters, m.Nodes, m.Proxies, m.Absent = maps.Clone(m.Clusters), maps.Clone(m.Nodes), maps.Clone(m.Proxies), maps.Clone(m.Absent)
	return m
}

// saveTries bounds how often Save retries a write after a conflict with another server.
const saveTries = 5

// Save writes the changes in m since the last Load or Save.
func (p *Pins) Save(ctx context.Context, m gossip.Memory) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for range saveTries {
		cm, s, err := p.read(ctx)
		if err != nil {
			return err
		}
		applyChanges(s.Clusters, p.known.Clusters, m.Clusters)
		applyChanges(s.Nodes, p.known.Nodes, m.Nodes)
		applyChanges(s.Proxies, p.known.Proxies, m.Proxies)
		applyChanges(s.Absent, p.known.Absent, m.Absent)
		s.Generations[p.node] = max(s.Generations[p.node], m.Generation)
		p.bound(s.Generations)
		b, err := json.Marshal(s)
		if err != nil {
			return err
		}
		if cm.Data[pinsData] != string(b) {
			if err := p.set(ctx, cm, pinsData, string(b)); apierrors.IsConflict(err) {
				continue
			} else if err != nil {
				return err
			}
		}
		p.known = clone(m)
		return nil
	}
	return fmt.Errorf("other clients change the ConfigMap %s continually", p.key)
}

// bound drops the servers of this cluster that started longest ago, beyond a number that no cluster reaches. Node ids are never reused.
func (p *Pins) bound(generations map[string]uint64) {
	for len(generations) > maxGenerations {
		oldest := ""
		for node, g := range generations {
			if node != p.node && (oldest == "" || g < generations[oldest] || g == generations[oldest] && node < oldest) {
				oldest = node
			}
		}
		delete(generations, oldest)
	}
}

// applyChanges makes the change from old to new in on, which other servers may have changed too.
func applyChanges[V comparable](on, old, new map[string]V) {
	for k, v := range new {
		was, known := old[k]
		if known && was == v {
			continue
		}
		if have, there := on[k]; there && have != v && !(known && have == was) {
			continue // another server of this cluster wrote first
		}
		on[k] = v
	}
	for k := range old {
		if _, ok := new[k]; !ok {
			delete(on, k)
		}
	}
}

func (p *Pins) read(ctx context.Context) (*corev1.ConfigMap, storedPins, error) {
	s := storedPins{Clusters: map[string]httpapi.PublicKey{}, Nodes: map[string]string{}, Proxies: map[string]string{}, Absent: map[string]int64{}, Generations: map[string]uint64{}}
	cm, err := p.get(ctx)
	if err != nil {
		return nil, s, err
	}
	if text := cm.Data[pinsData]; text != "" {
		if err := json.Unmarshal([]byte(text), &s); err != nil {
			return nil, s, fmt.Errorf("the ConfigMap %s, data %s: %w; correct it, or remove the data so that this server pins every cluster again on first contact", p.key, pinsData, err)
		}
	}
	if s.Clusters == nil || s.Nodes == nil || s.Proxies == nil || s.Absent == nil || s.Generations == nil { // null is not a valid map
		return nil, s, fmt.Errorf("the ConfigMap %s, data %s: clusters, nodes, proxies, absent and generations must be objects; correct it, or remove the data so that this server pins every cluster again on first contact", p.key, pinsData)
	}
	if limit := uint64(time.Now().Add(generationAhead).Unix()); s.Generations[p.node] > limit {
		return nil, s, fmt.Errorf("the ConfigMap %s, data %s: the generation of %s is %d, years ahead of the clock; set it to 0", p.key, pinsData, p.node, s.Generations[p.node])
	}
	return cm, s, nil
}

// generationAhead is how far this server's stored generation, which begins as its start time, may be ahead of the clock. Other servers
// would reject this server's records until the clock has caught up.
const generationAhead = 10 * 365 * 24 * time.Hour
