package inject

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strconv"
	"strings"
)

// Names of the adapter's parts of a pod.
const (
	containerName = "mca"

	// realVolume holds the pod's own credential. Only the adapter mounts it. If automounting is on,
	// ServiceAccount admission takes the first volume with this name prefix for its token volume. It must
	// therefore be the pod's first volume, and no other volume of the adapter has this prefix.
	realVolume   = "kube-api-access-sa"
	accessVolume = "mca-access" // replaces the credential in all other containers
	stateVolume  = "mca-state"
	configVolume = "mca-config"
	tokensVolume = "mca-tokens"

	credentialsVolumes = "mca-credentials-" // followed by a number
)

// Paths in the containers.
const (
	credentialsPath = "/var/run/secrets/kubernetes.io/serviceaccount" // where clients look for credentials, in every container
	sharePath       = "/var/run/secrets/kubernetes.io/mca-serviceaccount"
	statePath       = "/var/run/mca"
	configPath      = "/etc/mca/config"
	secretsPath     = "/etc/mca/credentials"
	tokensPath      = "/var/run/secrets/mca.tailplane.dev"

	tokenLife = 3607 // seconds, the same as ServiceAccount admission
)

// The adapter's parts, with fields in the conventional order. Objects with one field are maps.
type (
	container struct {
		Name            string          `json:"name"`
		Image           string          `json:"image"`
		ImagePullPolicy string          `json:"imagePullPolicy,omitempty"`
		RestartPolicy   string          `json:"restartPolicy"`
		Args            []string        `json:"args"`
		StartupProbe    probe           `json:"startupProbe"`
		Resources       amounts         `json:"resources"`
		SecurityContext securityContext `json:"securityContext"`
		VolumeMounts    []mount         `json:"volumeMounts"`
	}
	probe struct {
		Exec             map[string][]string `json:"exec"`
		PeriodSeconds    int                 `json:"periodSeconds"`
		FailureThreshold int                 `json:"failureThreshold"`
	}
	amounts struct {
		Requests Amounts `json:"requests,omitzero"`
		Limits   Amounts `json:"limits,omitzero"`
	}
	securityContext struct {
		RunAsNonRoot             bool                `json:"runAsNonRoot"`
		RunAsUser                int                 `json:"runAsUser"`
		AllowPrivilegeEscalation bool                `json:"allowPrivilegeEscalation"`
		ReadOnlyRootFilesystem   bool                `json:"readOnlyRootFilesystem"`
		Capabilities             map[string][]string `json:"capabilities"`
		SeccompProfile           map[string]string   `json:"seccompProfile"`
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
		Name      string              `json:"name"`
		EmptyDir  map[string]string   `json:"emptyDir,omitempty"`
		Projected map[string][]source `json:"projected,omitempty"`
		ConfigMap map[string]string   `json:"configMap,omitempty"`
		Secret    map[string]string   `json:"secret,omitempty"`
	}
	source struct {
		ServiceAccountToken *token                    `json:"serviceAccountToken,omitempty"`
		ConfigMap           *items                    `json:"configMap,omitempty"`
		DownwardAPI         map[string][]downwardItem `json:"downwardAPI,omitempty"`
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
	downwardItem struct {
		Path     string            `json:"path"`
		FieldRef map[string]string `json:"fieldRef"`
	}
)

// adapterParts are all parts of the adapter in one pod.
type adapterParts struct {
	Container container
	Volumes   []volume // the first must be the first volume of the pod
	Env       []variable
	Mount     mount
	CPULimit  string // used only if the pod needs one
}

// buildParts returns the adapter's parts for a pod with these annotations.
func buildParts(w podSettings, o Options) adapterParts {
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
		{Name: realVolume, Projected: map[string][]source{"sources": {
			{ServiceAccountToken: &token{ExpirationSeconds: tokenLife, Path: "token"}},
			{ConfigMap: &items{"kube-root-ca.crt", []item{{"ca.crt", "ca.crt"}}}},
			{DownwardAPI: map[string][]downwardItem{"items": {{"namespace", map[string]string{"fieldPath": "metadata.namespace"}}}}},
		}}},
		{Name: accessVolume, EmptyDir: map[string]string{"medium": "Memory"}},
		{Name: stateVolume, EmptyDir: map[string]string{"medium": "Memory"}},
	}
	mounts := []mount{{realVolume, credentialsPath, true}, {accessVolume, sharePath, false}, {stateVolume, statePath, false}}
	if w.config != "" {
		volumes = append(volumes, volume{Name: configVolume, ConfigMap: map[string]string{"name": w.config}})
		mounts = append(mounts, mount{configVolume, configPath, true})
	}
	for i, name := range w.credentials {
		// A Secret's name may be longer than a volume name may be.
		v := credentialsVolumes + strconv.Itoa(i)
		volumes = append(volumes, volume{Name: v, Secret: map[string]string{"secretName": name}})
		mounts = append(mounts, mount{v, secretsPath + "/" + name, true})
	}
	if len(w.audiences) > 0 {
		var tokens []source
		for _, a := range w.audiences {
			tokens = append(tokens, source{ServiceAccountToken: &token{a.audience, tokenLife, a.cluster + "/token"}})
		}
		volumes = append(volumes, volume{Name: tokensVolume, Projected: map[string][]source{"sources": tokens}})
		mounts = append(mounts, mount{tokensVolume, tokensPath, true})
	}
	return adapterParts{
		Container: container{
			Name: containerName, Image: s.Image, ImagePullPolicy: s.ImagePullPolicy, RestartPolicy: "Always", Args: args,
			// The probe must run in the container. A network probe of the kubelet comes from the node and
			// cannot reach a loopback address. Without the probe, applications would start before the adapter
			// has written their CA certificate.
			StartupProbe: probe{map[string][]string{"command": check}, 1, 60},
			Resources:    amounts{s.Resources.Requests, Amounts{Memory: s.Resources.Limits.Memory}},
			SecurityContext: securityContext{RunAsNonRoot: true, RunAsUser: 65532, ReadOnlyRootFilesystem: true,
				Capabilities: map[string][]string{"drop": {"ALL"}}, SeccompProfile: map[string]string{"type": "RuntimeDefault"}},
			VolumeMounts: mounts,
		},
		Volumes:  volumes,
		Env:      environment(w.port),
		Mount:    mount{accessVolume, credentialsPath, true},
		CPULimit: s.Resources.Limits.CPU,
	}
}

// environment returns the variables that make clients connect to the adapter. The variables of a container
// override those that the kubelet derives from Services.
func environment(port uint16) []variable {
	p := strconv.Itoa(int(port))
	return []variable{
		{"KUBERNETES_SERVICE_HOST", "127.0.0.1"}, {"KUBERNETES_SERVICE_PORT", p}, {"KUBERNETES_SERVICE_PORT_HTTPS", p},
		{"KUBERNETES_PORT", "tcp://127.0.0.1:" + p}, {"KUBERNETES_PORT_443_TCP", "tcp://127.0.0.1:" + p},
		{"KUBERNETES_PORT_443_TCP_PROTO", "tcp"}, {"KUBERNETES_PORT_443_TCP_PORT", p}, {"KUBERNETES_PORT_443_TCP_ADDR", "127.0.0.1"},
	}
}

// hash returns the hash of the parts, which depend only on the pod's annotations and the options. A reader of
// the annotations alone can therefore find outdated pods.
func (p adapterParts) hash() string {
	b, err := json.Marshal(p)
	if err != nil {
		panic(err) // strings and numbers always marshal
	}
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Hash returns the hash that injection with the current options writes into the status annotation of a pod
// with these annotations.
func Hash(annotations map[string]string, o Options) (string, error) {
	w, _, err := parseSettings(annotations, o.port())
	if err != nil {
		return "", err
	}
	return buildParts(w, o).hash(), nil
}

// Current reads the status annotation of a pod. version is the version of the program that injected the
// adapter. current reports whether injection would produce the same adapter now. ok is false for a pod
// without the adapter.
func Current(annotations map[string]string, o Options) (version string, current, ok bool) {
	s, ok := readStatus(annotations)
	if !ok {
		return "", false, false
	}
	hash, err := Hash(annotations, o)
	return s.Version, err == nil && hash == s.Hash, true
}

func (o Options) port() uint16 { return cmp.Or(o.Sidecar.Port, defaultPort) }

// status is the value of the status annotation.
type status struct {
	Version string `json:"version"`
	Hash    string `json:"hash"`
}

// readStatus parses the status annotation. It returns false if there is none, or if it cannot come from
// injection.
func readStatus(annotations map[string]string) (s status, ok bool) {
	v, ok := annotations[Status]
	return s, ok && json.Unmarshal([]byte(v), &s) == nil && s.Version != "" && strings.HasPrefix(s.Hash, "sha256:")
}

// isAdapterVolume reports whether a volume has one of the adapter's names.
func isAdapterVolume(volume string) bool {
	switch volume {
	case realVolume, accessVolume, stateVolume, configVolume, tokensVolume:
		return true
	}
	return strings.HasPrefix(volume, credentialsVolumes)
}
