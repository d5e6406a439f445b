package inject

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strconv"
	"strings"
)

// Names of our parts of a pod.
const (
	containerName = "mca"

	// realVolume holds the pod's own credential and is mounted in the adapter only.
	// ServiceAccount admission takes the first volume whose name begins so for the
	// token's, unless automounting is off: it is the first of all, and no other of
	// ours has such a name.
	realVolume   = "kube-api-access-sa"
	accessVolume = "mca-access" // what all other containers have in the credential's place
	stateVolume  = "mca-state"
	configVolume = "mca-config"
	tokensVolume = "mca-tokens"

	credentialsVolumes = "mca-credentials-" // and a number
)

// Paths in the containers.
const (
	credentialsPath = "/var/run/secrets/kubernetes.io/serviceaccount" // where clients look, in every container
	sharePath       = "/var/run/secrets/kubernetes.io/mca-serviceaccount"
	statePath       = "/var/run/mca"
	configPath      = "/etc/mca/config"
	secretsPath     = "/etc/mca/credentials"
	tokensPath      = "/var/run/secrets/mca.tailplane.dev"

	tokenLife = 3607 // seconds, as ServiceAccount admission asks for
)

// Our parts, in the order in which people write them.
type (
	container struct {
		Name            string      `json:"name"`
		Image           string      `json:"image"`
		ImagePullPolicy string      `json:"imagePullPolicy,omitempty"`
		RestartPolicy   string      `json:"restartPolicy"`
		Args            []string    `json:"args"`
		StartupProbe    probe       `json:"startupProbe"`
		Resources       amounts     `json:"resources"`
		SecurityContext confinement `json:"securityContext"`
		VolumeMounts    []mount     `json:"volumeMounts"`
	}
	probe struct {
		Exec             command `json:"exec"`
		PeriodSeconds    int     `json:"periodSeconds"`
		FailureThreshold int     `json:"failureThreshold"`
	}
	command struct {
		Command []string `json:"command"`
	}
	amounts struct {
		Requests Amounts `json:"requests,omitzero"`
		Limits   Amounts `json:"limits,omitzero"`
	}
	confinement struct {
		RunAsNonRoot             bool         `json:"runAsNonRoot"`
		RunAsUser                int          `json:"runAsUser"`
		AllowPrivilegeEscalation bool         `json:"allowPrivilegeEscalation"`
		ReadOnlyRootFilesystem   bool         `json:"readOnlyRootFilesystem"`
		Capabilities             capabilities `json:"capabilities"`
		SeccompProfile           typed        `json:"seccompProfile"`
	}
	capabilities struct {
		Drop []string `json:"drop"`
	}
	typed struct {
		Type string `json:"type"`
	}
	mount struct {
		Name      string `json:"name"`
		MountPath string `json:"mountPath"`
		ReadOnly  bool   `json:"readOnly,omitempty"`
	}
	variable struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	}
	volume struct {
		Name      string     `json:"name"`
		EmptyDir  *medium    `json:"emptyDir,omitempty"`
		Projected *projected `json:"projected,omitempty"`
		ConfigMap *named     `json:"configMap,omitempty"`
		Secret    *secret    `json:"secret,omitempty"`
	}
	medium struct {
		Medium string `json:"medium"`
	}
	projected struct {
		Sources []source `json:"sources"`
	}
	source struct {
		ServiceAccountToken *token    `json:"serviceAccountToken,omitempty"`
		ConfigMap           *items    `json:"configMap,omitempty"`
		DownwardAPI         *downward `json:"downwardAPI,omitempty"`
	}
	token struct {
		Audience          string `json:"audience,omitempty"`
		ExpirationSeconds int    `json:"expirationSeconds"`
		Path              string `json:"path"`
	}
	items struct {
		Name  string `json:"name"`
		Items []item `json:"items"`
	}
	item struct {
		Key  string `json:"key"`
		Path string `json:"path"`
	}
	downward struct {
		Items []downwardItem `json:"items"`
	}
	downwardItem struct {
		Path     string   `json:"path"`
		FieldRef fieldRef `json:"fieldRef"`
	}
	fieldRef struct {
		FieldPath string `json:"fieldPath"`
	}
	named struct {
		Name string `json:"name"`
	}
	secret struct {
		SecretName string `json:"secretName"`
	}
)

// parts are everything of ours in one pod.
type parts struct {
	Container container
	Volumes   []volume // the first is the first of the pod
	Env       []variable
	Mount     mount
	CPULimit  string // where the pod needs one
}

// build says what a pod with these wishes has of ours.
func build(w wishes, o Options) parts {
	s := o.Sidecar
	args := []string{"proxy"}
	check := []string{"/mca", "proxy", "--check"}
	if w.port != defaultPort {
		args = append(args, "--listen", "127.0.0.1:"+strconv.Itoa(int(w.port)))
	}
	if w.metrics {
		args = append(args, "--metrics", ":"+strconv.Itoa(metricsPort))
	}
	if s.LogLevel != "" && s.LogLevel != "info" {
		args = append(args, "--log-level", s.LogLevel)
	}
	volumes := []volume{
		{Name: realVolume, Projected: &projected{[]source{
			{ServiceAccountToken: &token{ExpirationSeconds: tokenLife, Path: "token"}},
			{ConfigMap: &items{"kube-root-ca.crt", []item{{"ca.crt", "ca.crt"}}}},
			{DownwardAPI: &downward{[]downwardItem{{"namespace", fieldRef{"metadata.namespace"}}}}},
		}}},
		{Name: accessVolume, EmptyDir: &medium{"Memory"}},
		{Name: stateVolume, EmptyDir: &medium{"Memory"}},
	}
	mounts := []mount{{realVolume, credentialsPath, true}, {accessVolume, sharePath, false}, {stateVolume, statePath, false}}
	if w.config != "" {
		volumes = append(volumes, volume{Name: configVolume, ConfigMap: &named{w.config}})
		mounts = append(mounts, mount{configVolume, configPath, true})
	}
	for i, name := range w.credentials {
		// The name of a Secret may be longer than that of a volume.
		v := credentialsVolumes + strconv.Itoa(i)
		volumes = append(volumes, volume{Name: v, Secret: &secret{name}})
		mounts = append(mounts, mount{v, secretsPath + "/" + name, true})
	}
	if len(w.audiences) > 0 {
		var tokens projected
		for _, a := range w.audiences {
			tokens.Sources = append(tokens.Sources, source{ServiceAccountToken: &token{a.audience, tokenLife, a.cluster + "/token"}})
		}
		volumes = append(volumes, volume{Name: tokensVolume, Projected: &tokens})
		mounts = append(mounts, mount{tokensVolume, tokensPath, true})
	}
	return parts{
		Container: container{
			Name: containerName, Image: s.Image, ImagePullPolicy: s.ImagePullPolicy, RestartPolicy: "Always", Args: args,
			// From inside: a probe of the kubelet's comes from the node and cannot reach
			// what listens on loopback. Without it, applications would start before
			// their certificate authority is written.
			StartupProbe: probe{command{check}, 1, 60},
			Resources:    amounts{s.Resources.Requests, Amounts{Memory: s.Resources.Limits.Memory}},
			SecurityContext: confinement{RunAsNonRoot: true, RunAsUser: 65532, ReadOnlyRootFilesystem: true,
				Capabilities: capabilities{[]string{"ALL"}}, SeccompProfile: typed{"RuntimeDefault"}},
			VolumeMounts: mounts,
		},
		Volumes:  volumes,
		Env:      environment(w.port),
		Mount:    mount{accessVolume, credentialsPath, true},
		CPULimit: s.Resources.Limits.CPU,
	}
}

// environment leads clients to the adapter. A container's own variables win over
// those that the kubelet makes of Services.
func environment(port uint16) []variable {
	p := strconv.Itoa(int(port))
	return []variable{
		{"KUBERNETES_SERVICE_HOST", "127.0.0.1"}, {"KUBERNETES_SERVICE_PORT", p}, {"KUBERNETES_SERVICE_PORT_HTTPS", p},
		{"KUBERNETES_PORT", "tcp://127.0.0.1:" + p}, {"KUBERNETES_PORT_443_TCP", "tcp://127.0.0.1:" + p},
		{"KUBERNETES_PORT_443_TCP_PROTO", "tcp"}, {"KUBERNETES_PORT_443_TCP_PORT", p}, {"KUBERNETES_PORT_443_TCP_ADDR", "127.0.0.1"},
	}
}

// hash is what the pod's annotations and the options come to. It does not depend
// on the rest of the pod, so who sees only the annotations can tell which pods
// are of another day.
func (p parts) hash() string {
	b, err := json.Marshal(p)
	if err != nil {
		panic(err) // strings and numbers
	}
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Hash is the hash in the status annotation of a pod that is injected today with
// these annotations.
func Hash(annotations map[string]string, o Options) (string, error) {
	w, _, err := wish(annotations, o.port())
	if err != nil {
		return "", err
	}
	return build(w, o).hash(), nil
}

// Current says of a pod's annotations which version of the program put the
// adapter in, and whether it is the adapter that would be put in today; ok is
// false for a pod without one.
func Current(annotations map[string]string, o Options) (version string, current, ok bool) {
	s, ok := readStatus(annotations)
	if !ok {
		return "", false, false
	}
	hash, err := Hash(annotations, o)
	return s.Version, err == nil && hash == s.Hash, true
}

func (o Options) port() uint16 { return cmp.Or(o.Sidecar.Port, defaultPort) }

// A status is the value of the status annotation.
type status struct {
	Version string `json:"version"`
	Hash    string `json:"hash"`
}

// readStatus returns the status annotation's value; false if there is none that
// injection could have written.
func readStatus(annotations map[string]string) (s status, ok bool) {
	v, ok := annotations[Status]
	return s, ok && json.Unmarshal([]byte(v), &s) == nil && s.Version != "" && strings.HasPrefix(s.Hash, "sha256:")
}

// ours reports whether a volume has a name that injection gives.
func ours(volume string) bool {
	switch volume {
	case realVolume, accessVolume, stateVolume, configVolume, tokensVolume:
		return true
	}
	return strings.HasPrefix(volume, credentialsVolumes)
}
