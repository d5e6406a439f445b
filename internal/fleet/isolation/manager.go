package isolation

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/tailplane/tailplane/api/v1alpha1"
)

const (
	configMount = "/etc/gitlab-runner"
	stateMount  = "/var/lib/gitlab-runner"
	configKey   = "config.toml"
	caMount     = "/etc/gitlab-runner-ca"
)

// startScript is the script of a manager's pod. GitLab's runner aborts its jobs on SIGTERM and waits for
// them on SIGQUIT, so the script passes SIGTERM on as SIGQUIT. The runner writes into the directory
// of its configuration. Therefore the script copies the configuration, and copies it again when the
// Secret changes. A shell starts background processes with SIGQUIT ignored. A Go program, such as
// the runner, receives it anyway.
const startScript = `set -u
copy() { cp ` + configMount + `/` + configKey + ` ` + stateMount + `/next && chmod 600 ` + stateMount + `/next && mv ` + stateMount + `/next ` + stateMount + `/` + configKey + `; }
copy || exit 1
while sleep 5; do cmp -s ` + configMount + `/` + configKey + ` ` + stateMount + `/` + configKey + ` || copy; done &
copier=$!
gitlab-runner run --config ` + stateMount + `/` + configKey + ` --working-directory ` + stateMount + ` &
runner=$!
asked=yes
trap 'asked=yes; kill -QUIT "$runner"' TERM INT QUIT
while [ "$asked" ]; do
  asked=
  wait "$runner"
  code=$?
done
kill "$copier"
exit "$code"
`

// replicas returns the number of managers of a pool for one organisation, before its allocation is
// applied.
func replicas(pool *v1alpha1.RunnerPool) int {
	if g := pool.Spec.GitLab; g != nil && g.Replicas > 0 {
		return min(int(g.Replicas), maxReplicasPerPool)
	}
	return 1
}

// ManagerCount returns the current number of managers of a unit, and the number of jobs that each may
// run. Together they never run more jobs than allocated. A unit without capacity keeps its managers
// for running jobs, paused at GitLab.
func ManagerCount(u WorkloadSpec) (managers, concurrent int) {
	limit := 4
	if g := u.Pool.Spec.GitLab; g != nil && g.Concurrent > 0 {
		limit = int(g.Concurrent)
	}
	managers = replicas(u.Pool)
	switch {
	case u.Manual && u.Capacity.Max <= 0:
		return 0, 1
	case u.Drained && (u.Capacity.Mode == v1alpha1.HoldDrain || u.Capacity.Mode == v1alpha1.HoldStop):
		return 0, 1
	case u.Capacity.Max <= 0:
		return managers, 1
	}
	managers = min(managers, u.Capacity.Max)
	return managers, min(limit, u.Capacity.Max/managers)
}

// managerObjects renders the objects of a GitLab runner: its configuration, its Deployment and, for
// several managers, a PodDisruptionBudget. The number of jobs is in the configuration, which a
// manager reloads without a restart.
func managerObjects(s Settings, u WorkloadSpec) ([]Object, error) {
	namespace, err := u.validate(s, v1alpha1.GitLab)
	switch {
	case err != nil:
	case u.Use.Type == v1alpha1.UseOrgPlusUser || u.Use.RunnerGroup != "":
		err = fmt.Errorf("a GitLab group runner cannot be limited to some projects")
	case u.Token.IsZero():
		err = fmt.Errorf("it has no token")
	case s.Images.Manager == "":
		err = fmt.Errorf("the settings have no image for GitLab's runner")
	case u.Pool.Spec.Image == "" && s.Images.Job == "":
		err = fmt.Errorf("neither the pool nor the settings have an image for jobs")
	case u.Pool.Spec.Template != nil:
		err = fmt.Errorf("pool %s: only GitHub runners have a template", u.Pool.Name)
	}
	if err != nil {
		return nil, fmt.Errorf("manager %s: %w", u.Name, err)
	}
	config, err := managerConfig(s, u, namespace)
	if err != nil {
		return nil, fmt.Errorf("manager %s: %w", u.Name, err)
	}
	out := []Object{
		&corev1.Secret{
			TypeMeta:   typeMeta(corev1.SchemeGroupVersion, "Secret"),
			ObjectMeta: objectMeta(namespace, ConfigName(u.Name), u.Enrollment.Name, map[string]string{v1alpha1.PoolLabel: u.Pool.Name}),
			Type:       corev1.SecretTypeOpaque,
			Data:       map[string][]byte{configKey: []byte(config)},
		},
		managerDeployment(s, u, namespace),
	}
	if n, _ := ManagerCount(u); n > 1 {
		out = append(
			out,
			&policyv1.PodDisruptionBudget{
				TypeMeta:   typeMeta(policyv1.SchemeGroupVersion, "PodDisruptionBudget"),
				ObjectMeta: objectMeta(namespace, u.Name, u.Enrollment.Name, map[string]string{v1alpha1.PoolLabel: u.Pool.Name}),
				Spec: policyv1.PodDisruptionBudgetSpec{
					MaxUnavailable: new(intstr.FromInt32(1)),
					Selector:       new(labelSelector(workloadLabels(u))),
				},
			},
		)
	}
	return out, nil
}

// ConfigName returns the name of the Secret with a workload's configuration.
func ConfigName(workload string) string { return workload + "-runner-config" }

// tokenSuffix is the suffix of the names of Secrets with a runner's token.
const tokenSuffix = "-runner-token"

// TokenName returns the name of the Secret with the token of a workload's runner.
func TokenName(workload string) string { return workload + tokenSuffix }

// WorkloadOfToken returns the workload of a token Secret; ok is false for other Secrets.
func WorkloadOfToken(secret string) (workload string, ok bool) {
	return strings.CutSuffix(secret, tokenSuffix)
}

// workloadLabels returns the selector labels of a unit's managers. They never change.
func workloadLabels(u WorkloadSpec) map[string]string {
	return map[string]string{"app.kubernetes.io/instance": u.Name, componentLabel: componentManager}
}

func shutdownTimeout(pool *v1alpha1.RunnerPool) time.Duration {
	if g := pool.Spec.GitLab; g != nil && g.ShutdownTimeout.Duration > 0 {
		return g.ShutdownTimeout.Duration
	}
	return time.Hour
}

// managerConfig renders the runner's config.toml. In TOML, the plain keys of a table must precede
// its subtables.
func managerConfig(s Settings, u WorkloadSpec, namespace string) (string, error) {
	_, concurrent := ManagerCount(u)
	var t tomlWriter
	t.number("concurrent", concurrent)
	t.number("check_interval", 3)
	t.number("shutdown_timeout", int(shutdownTimeout(u.Pool)/time.Second))
	t.text("listen_address", fmt.Sprintf(":%d", metricsPort))
	t.table("runners", true)
	t.text("name", u.Name)
	t.text("url", u.Forge.Spec.URL)
	t.text("token", u.Token.Reveal())
	t.text("executor", "kubernetes")
	t.number("limit", concurrent)
	t.number("request_concurrency", 1)
	if u.Forge.Spec.CABundle != "" {
		t.text("tls-ca-file", caMount+"/"+caKey)
	}
	t.table("runners.kubernetes", false)
	t.text("namespace", namespace)
	t.text("image", cmp.Or(u.Pool.Spec.Image, s.Images.Job))
	if s.Images.Helper != "" {
		t.text("helper_image", s.Images.Helper)
	}
	dind := u.Pool.Spec.ContainerMode == v1alpha1.ModeDind
	t.boolean("privileged", dind)
	if !dind {
		t.boolean("allow_privilege_escalation", false)
	}
	t.text("service_account", RunnerAccount)
	t.boolean("automount_service_account_token", false)
	if r := u.Pool.Spec.Resources; r != nil {
		for _, x := range []struct {
			key  string
			list corev1.ResourceList
			name corev1.ResourceName
		}{{"cpu_request", r.Requests, corev1.ResourceCPU}, {"cpu_limit", r.Limits, corev1.ResourceCPU}, {"memory_request", r.Requests, corev1.ResourceMemory}, {"memory_limit", r.Limits, corev1.ResourceMemory}} {
			if q, ok := x.list[x.name]; ok {
				t.text(x.key, q.String())
			}
		}
	}
	t.number("poll_timeout", 600)
	t.number("cleanup_grace_period_seconds", 30)
	t.text("priority_class_name", JobPriority)
	selector, tolerations, class := placement(u.Enrollment)
	if class != "" {
		t.text("runtime_class_name", class)
	}
	t.strings("runners.kubernetes.node_selector", selector)
	tolerated := map[string]string{}
	for _, x := range tolerations {
		key := x.Key
		if x.Operator != corev1.TolerationOpExists {
			key += "=" + x.Value
		}
		if _, twice := tolerated[key]; twice || x.Key == "" || x.TolerationSeconds != nil {
			return "", fmt.Errorf(
				"GitLab's runner does not support the toleration of %q: it accepts each key once, and neither an empty key nor tolerationSeconds",
				x.Key,
			)
		}
		tolerated[key] = string(x.Effect)
	}
	t.strings("runners.kubernetes.node_tolerations", tolerated)
	t.strings("runners.kubernetes.pod_labels", podLabels(u.Enrollment.Name, u.Pool.Name, componentJob))
	return t.String(), nil
}

func managerDeployment(s Settings, u WorkloadSpec, namespace string) *appsv1.Deployment {
	n, _ := ManagerCount(u)
	labels := podLabels(u.Enrollment.Name, u.Pool.Name, componentManager)
	labels["app.kubernetes.io/instance"], labels[apiLabel] = u.Name, "true"
	mounts := []corev1.VolumeMount{
		{Name: "config", MountPath: configMount, ReadOnly: true},
		{Name: "state", MountPath: stateMount},
		{Name: "tmp", MountPath: "/tmp"},
	}
	volumes := []corev1.Volume{
		{
			Name: "config",
			VolumeSource: corev1.VolumeSource{
				Secret: &corev1.SecretVolumeSource{SecretName: ConfigName(u.Name), DefaultMode: new(int32(0o440))},
			},
		},
		{Name: "state", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		{Name: "tmp", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
	}
	if u.Forge.Spec.CABundle != "" {
		mounts = append(mounts, corev1.VolumeMount{Name: "ca", MountPath: caMount, ReadOnly: true})
		volumes = append(
			volumes,
			corev1.Volume{
				Name: "ca",
				VolumeSource: corev1.VolumeSource{
					ConfigMap: &corev1.ConfigMapVolumeSource{
						LocalObjectReference: corev1.LocalObjectReference{Name: caBundleName(u.Forge)},
					},
				},
			},
		)
	}
	pod := corev1.PodSpec{
		ServiceAccountName: ManagerAccount, AutomountServiceAccountToken: new(true), PriorityClassName: ManagerPriority,
		TerminationGracePeriodSeconds: new(int64(shutdownTimeout(u.Pool)/time.Second) + 60), Volumes: volumes,
		SecurityContext: &corev1.PodSecurityContext{
			RunAsNonRoot:   new(true),
			RunAsUser:      new(int64(65532)),
			RunAsGroup:     new(int64(65532)),
			FSGroup:        new(int64(65532)),
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		Containers: []corev1.Container{{
			Name: "manager", Image: s.Images.Manager, Command: []string{"/bin/sh", "-c", startScript}, Env: []corev1.EnvVar{{Name: "HOME", Value: stateMount}}, VolumeMounts: mounts,
			Ports: []corev1.ContainerPort{{Name: "metrics", ContainerPort: metricsPort, Protocol: corev1.ProtocolTCP}},
			Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{
					corev1.ResourceCPU:    resource.MustParse("100m"),
					corev1.ResourceMemory: resource.MustParse("128Mi"),
				},
				Limits: corev1.ResourceList{
					corev1.ResourceCPU:    resource.MustParse("1"),
					corev1.ResourceMemory: resource.MustParse("512Mi"),
				},
			},
			SecurityContext: &corev1.SecurityContext{
				AllowPrivilegeEscalation: new(false),
				ReadOnlyRootFilesystem:   new(true),
				Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			},
		}},
	}
	applyPlacement(&pod, u.Enrollment)
	return &appsv1.Deployment{
		TypeMeta:   typeMeta(appsv1.SchemeGroupVersion, "Deployment"),
		ObjectMeta: objectMeta(namespace, u.Name, u.Enrollment.Name, map[string]string{v1alpha1.PoolLabel: u.Pool.Name}),
		Spec: appsv1.DeploymentSpec{Replicas: new(int32(n)), Selector: new(labelSelector(workloadLabels(u))),
			// A stopping manager may wait for its jobs, so its replacement must start first.
			Strategy: appsv1.DeploymentStrategy{
				Type: appsv1.RollingUpdateDeploymentStrategyType,
				RollingUpdate: &appsv1.RollingUpdateDeployment{
					MaxUnavailable: new(intstr.FromInt32(0)),
					MaxSurge:       new(intstr.FromInt32(1)),
				},
			},
			Template: corev1.PodTemplateSpec{ObjectMeta: objectMeta("", "", u.Enrollment.Name, labels), Spec: pod}},
	}
}

// Objects renders the objects of a unit for any forge, in the order in which to apply them.
func Objects(s Settings, u WorkloadSpec) ([]Object, error) {
	switch u.Forge.Spec.Type {
	case v1alpha1.GitHub:
		set, err := ScaleSet(s, u)
		if err != nil {
			return nil, err
		}
		return []Object{set}, nil
	case v1alpha1.GitLab:
		return managerObjects(s, u)
	}
	return nil, fmt.Errorf("workload %s: unknown forge type %q", u.Name, u.Forge.Spec.Type)
}

// tomlWriter is a TOML document with the features that a runner's configuration needs: strings,
// numbers and booleans, then tables. It quotes all values, so that a name cannot add another line.
type tomlWriter struct{ strings.Builder }

// table starts a table or, with array, an element of an array of tables.
func (t *tomlWriter) table(path string, array bool) {
	if array {
		path = "[" + path + "]"
	}
	fmt.Fprintf(t, "\n[%s]\n", path)
}

func (t *tomlWriter) text(key, value string) {
	fmt.Fprintf(t, "%s = %s\n", tomlKey(key), tomlQuote(value))
}
func (t *tomlWriter) number(key string, n int)   { fmt.Fprintf(t, "%s = %d\n", tomlKey(key), n) }
func (t *tomlWriter) boolean(key string, b bool) { fmt.Fprintf(t, "%s = %t\n", tomlKey(key), b) }

// strings writes a table of strings, sorted by key. It writes nothing if there are none.
func (t *tomlWriter) strings(path string, m map[string]string) {
	if len(m) == 0 {
		return
	}
	t.table(path, false)
	for _, k := range slices.Sorted(maps.Keys(m)) {
		t.text(k, m[k])
	}
}

func tomlKey(key string) string {
	if key != "" && strings.Trim(key, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") == "" {
		return key
	}
	return tomlQuote(key)
}

// tomlQuote returns a basic string. It replaces invalid UTF-8 by the replacement character.
func tomlQuote(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r < 0x20 || r == 0x7f:
			b.WriteString(`\u00` + strconv.FormatInt(int64(r)+0x100, 16)[1:])
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}
