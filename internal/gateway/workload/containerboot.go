package workload

import (
	"encoding/json"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
)

// ConfigFileKey is the key, and the file name, of a configuration file in a config
// Secret. The number is a capability version: every image that knows the contract
// reads that one.
const ConfigFileKey = "cap-106.hujson"

const (
	tsconfigMount = "/etc/tsconfig"

	// configStep is by how many ordinals the mounted Secrets grow: a group that is
	// scaled within it keeps its pods' template, and so its pods.
	configStep = 10
)

// A ConfigFile is what Tailscale's own image is told about its node.
type ConfigFile struct {
	Hostname   string
	ControlURL string // empty: Tailscale's
	AuthKey    string // secret; empty once the node has joined
	// Services are the VIP services to advertise.
	Services []string
}

// JSON is the file. It holds the auth key, so it belongs into a Secret only.
func (f ConfigFile) JSON() []byte {
	b, err := json.Marshal(struct {
		Version           string
		Locked            bool
		Hostname          string
		ServerURL         string   `json:",omitempty"`
		AuthKey           string   `json:",omitempty"`
		AcceptDNS         bool     // the pod's names are the cluster's
		AcceptRoutes      bool     // VIP services are routes
		AdvertiseServices []string `json:",omitempty"`
	}{"alpha0", false, f.Hostname, f.ControlURL, f.AuthKey, false, true, sorted(f.Services)})
	if err != nil {
		panic("configuration file: " + err.Error()) // strings only
	}
	return b
}

// becomeContainerboot changes what is other in a pod that runs Tailscale's own image.
// It has no API for its auth key, so all config Secrets are mounted. For egress it
// forwards packets in the kernel, which takes every privilege; that is why an
// operator must allow it.
func (g *group) becomeContainerboot(p *corev1.PodSpec) {
	c := &p.Containers[0]
	c.Name, c.Args = "tailscale", nil
	at := slices.IndexFunc(c.Env, func(v corev1.EnvVar) bool { return v.Name == "TS_LOCAL_ADDR_PORT" })
	c.Env = slices.Insert(c.Env, at, corev1.EnvVar{Name: "TS_EXPERIMENTAL_VERSIONED_CONFIG_DIR", Value: tsconfigMount + "/$(POD_NAME)"})
	c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "tsconfig", MountPath: tsconfigMount, ReadOnly: true})
	p.Volumes = append(p.Volumes, g.tsconfig())
	// It answers /healthz only, and there 503 until it has joined: it ends by itself
	// when its daemon does, so nobody needs to end it.
	c.LivenessProbe = nil
	c.ReadinessProbe.HTTPGet.Path = "/healthz"
	// Its socket and its state lie there.
	for i := range c.VolumeMounts {
		if c.VolumeMounts[i].Name == "state" {
			c.VolumeMounts[i].MountPath = "/tmp"
		}
	}
	if g.Spec.Type == v1alpha1.Ingress {
		c.Lifecycle = nil // it withdraws when it is told to end
		return
	}
	c.Lifecycle.PreStop.HTTPGet.Path = "/internal-egress-services-preshutdown"
	c.Env[slices.IndexFunc(c.Env, func(v corev1.EnvVar) bool { return v.Name == "TS_USERSPACE" })].Value = "false"
	privileged := &corev1.SecurityContext{Privileged: new(true), RunAsUser: new(int64(0)), RunAsGroup: new(int64(0)), RunAsNonRoot: new(false)}
	p.SecurityContext, c.SecurityContext = nil, privileged
	p.InitContainers = []corev1.Container{{Name: "forwarding", Image: c.Image, ImagePullPolicy: c.ImagePullPolicy, SecurityContext: privileged.DeepCopy(), Resources: *c.Resources.DeepCopy(),
		Command: []string{"/bin/sh", "-c"},
		Args:    []string{"sysctl -w net.ipv4.ip_forward=1 && if sysctl net.ipv6.conf.all.forwarding; then sysctl -w net.ipv6.conf.all.forwarding=1; fi"}}}
}

// tsconfig mounts the configuration file of each ordinal in a folder of the pod's
// name. Those of ordinals that are not there yet are optional.
func (g *group) tsconfig() corev1.Volume {
	count := min((g.replicas+configStep-1)/configStep*configStep, MaxReplicas)
	count = max(count, configStep)
	v := &corev1.ProjectedVolumeSource{}
	for i := range count {
		v.Sources = append(v.Sources, corev1.VolumeProjection{Secret: &corev1.SecretProjection{
			LocalObjectReference: corev1.LocalObjectReference{Name: ConfigSecretName(g.Name, i)}, Optional: new(true),
			Items: []corev1.KeyToPath{{Key: ConfigFileKey, Path: g.Name + "-" + strconv.Itoa(int(i)) + "/" + ConfigFileKey}},
		}})
	}
	return corev1.Volume{Name: "tsconfig", VolumeSource: corev1.VolumeSource{Projected: v}}
}
