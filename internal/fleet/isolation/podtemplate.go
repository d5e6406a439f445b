package isolation

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"

	"github.com/tailplane/tailplane/api/v1alpha1"
)

const runnerHome = "/home/runner"

// podTemplate returns the pod template of a GitHub runner as a pool describes it, with the additions
// of its container mode. It is not specific to an organisation yet. An error says what is wrong
// with the pool; [fleet.View] has a field for it.
func podTemplate(pool *v1alpha1.RunnerPool, images Images) (*corev1.PodTemplateSpec, error) {
	t := &corev1.PodTemplateSpec{}
	if pool.Spec.Template != nil && len(pool.Spec.Template.Raw) > 0 {
		if err := yaml.UnmarshalStrict(pool.Spec.Template.Raw, t); err != nil {
			return nil, fmt.Errorf("its template: %w", err)
		}
		if err := checkTemplate(t); err != nil {
			return nil, fmt.Errorf("its template: %w", err)
		}
	} else {
		c := corev1.Container{Name: v1alpha1.RunnerContainer, Image: pool.Spec.Image}
		if pool.Spec.Resources != nil {
			c.Resources = *pool.Spec.Resources.DeepCopy()
		}
		t.Spec.Containers = []corev1.Container{c}
	}
	runner := &t.Spec.Containers[slices.IndexFunc(t.Spec.Containers, isRunner)]
	if runner.Image = cmp.Or(runner.Image, images.Runner); runner.Image == "" {
		return nil, errors.New("neither the pool nor the settings have an image")
	}
	if len(runner.Command) == 0 {
		runner.Command = []string{runnerHome + "/run.sh"}
	}
	return t, applyContainerMode(t, runner, pool.Spec.ContainerMode, images)
}

func isRunner(c corev1.Container) bool { return c.Name == v1alpha1.RunnerContainer }

// checkTemplate refuses settings that would let a job out of its pod. Pod Security Admission refuses
// most of them too, but only when ARC creates the pod, and ARC would retry endlessly.
func checkTemplate(t *corev1.PodTemplateSpec) error {
	s := &t.Spec
	var errs []error
	bad := func(wrong bool, format string, args ...any) {
		if wrong {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	runners := 0
	for _, c := range s.Containers {
		if isRunner(c) {
			runners++
		}
	}
	bad(runners != 1, "it has %d containers named %s, but must have one", runners, v1alpha1.RunnerContainer)
	bad(s.HostNetwork || s.HostPID || s.HostIPC, "a namespace of the host")
	bad(s.NodeName != "", "nodeName")
	bad(s.ServiceAccountName != "" || s.DeprecatedServiceAccount != "", "a ServiceAccount")
	bad(s.AutomountServiceAccountToken != nil && *s.AutomountServiceAccountToken, "a ServiceAccount token")
	bad(
		s.RestartPolicy != "" && s.RestartPolicy != corev1.RestartPolicyNever,
		"restartPolicy %s: each job needs a new pod",
		s.RestartPolicy,
	)
	bad(len(s.EphemeralContainers) > 0, "ephemeral containers")
	bad(s.PriorityClassName != "" || s.Priority != nil, "a priority")
	for _, x := range s.Tolerations {
		bad(x.Key == "" || x.Key == v1alpha1.OrgLabel, "a toleration of key %q: those nodes belong to one organisation", x.Key)
	}
	_, org := s.NodeSelector[v1alpha1.OrgLabel]
	bad(org, "the node selector %s: those nodes belong to one organisation", v1alpha1.OrgLabel)
	for _, v := range s.Volumes {
		bad(v.HostPath != nil, "the host path of volume %s", v.Name)
		if v.Projected != nil {
			bad(
				slices.ContainsFunc(v.Projected.Sources, func(p corev1.VolumeProjection) bool { return p.ServiceAccountToken != nil }),
				"a token in volume %s",
				v.Name,
			)
		}
	}
	for _, name := range secretsOf(s) {
		bad(
			generatedSecrets.MatchString(name),
			"the Secret %s: names that end in -runner-config, -runner-token or eight hexadecimal digits are reserved for the fleet",
			name,
		)
	}
	for _, c := range slices.Concat(s.InitContainers, s.Containers) {
		if sc := c.SecurityContext; sc != nil {
			bad(sc.Privileged != nil && *sc.Privileged, "the privileged container %s: use container mode dind", c.Name)
		}
		bad(
			slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.HostPort != 0 }),
			"a host port in container %s",
			c.Name,
		)
	}
	return errors.Join(errs...)
}

// applyContainerMode adds what a container mode needs, like ARC's own chart.
func applyContainerMode(t *corev1.PodTemplateSpec, runner *corev1.Container, m v1alpha1.ContainerMode, images Images) error {
	work := corev1.VolumeMount{Name: "work", MountPath: runnerHome + "/_work"}
	switch m {
	case "", v1alpha1.ModeDefault:
		return nil
	case v1alpha1.ModeDind:
		if err := addDocker(t, runner, work, images.Docker); err != nil {
			return err
		}
	case v1alpha1.ModeKubernetes:
		addHooks(runner, "k8s")
		addVolume(t, "work", corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{
			VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources: corev1.VolumeResourceRequirements{
					Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("10Gi")},
				},
			}},
		}})
	case v1alpha1.ModeKubernetesNoVolume:
		addHooks(runner, "k8s-novolume")
		addEnv(runner, corev1.EnvVar{Name: "ACTIONS_RUNNER_IMAGE", Value: runner.Image})
		addVolume(t, "work", emptyDir())
	default:
		return fmt.Errorf("unknown container mode %q", m)
	}
	addMounts(runner, work)
	return nil
}

// addDocker adds Docker in a sidecar, and the runner's way to it.
func addDocker(t *corev1.PodTemplateSpec, runner *corev1.Container, work corev1.VolumeMount, image string) error {
	const daemon, setup = "dind", "init-dind-externals"
	if image == "" {
		return errors.New("container mode dind needs a Docker image in the settings")
	}
	isOurs := func(c corev1.Container) bool { return c.Name == daemon || c.Name == setup }
	if slices.ContainsFunc(slices.Concat(t.Spec.InitContainers, t.Spec.Containers), isOurs) {
		return fmt.Errorf("container mode dind adds the containers %s and %s, but the template already has one of them", daemon, setup)
	}
	socket := corev1.VolumeMount{Name: "dind-sock", MountPath: "/var/run"}
	externals := func(path string) corev1.VolumeMount {
		return corev1.VolumeMount{Name: "dind-externals", MountPath: runnerHome + path}
	}
	addEnv(runner,
		corev1.EnvVar{Name: "DOCKER_HOST", Value: "unix:///var/run/docker.sock"},
		corev1.EnvVar{Name: "RUNNER_WAIT_FOR_DOCKER_IN_SECONDS", Value: "120"})
	t.Spec.InitContainers = append(t.Spec.InitContainers,
		corev1.Container{
			Name:         setup,
			Image:        runner.Image,
			Command:      []string{"cp", "-r", runnerHome + "/externals/.", runnerHome + "/tmpDir/"},
			VolumeMounts: []corev1.VolumeMount{externals("/tmpDir")},
		},
		corev1.Container{ // a sidecar: it runs next to the job and ends after it
			Name:            daemon,
			Image:           image,
			RestartPolicy:   new(corev1.ContainerRestartPolicyAlways),
			Args:            []string{"dockerd", "--host=unix:///var/run/docker.sock", "--group=$(DOCKER_GROUP_GID)"},
			Env:             []corev1.EnvVar{{Name: "DOCKER_GROUP_GID", Value: "123"}},
			SecurityContext: &corev1.SecurityContext{Privileged: new(true)},
			StartupProbe: &corev1.Probe{
				ProbeHandler:     corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"docker", "info"}}},
				FailureThreshold: 24,
				PeriodSeconds:    5,
			},
			VolumeMounts: []corev1.VolumeMount{work, socket, externals("/externals")},
		})
	addMounts(runner, work, socket)
	for _, name := range []string{work.Name, socket.Name, "dind-externals"} {
		addVolume(t, name, emptyDir())
	}
	return nil
}

// addHooks lets the runner start each job in a pod, with hooks of a folder of its image.
func addHooks(runner *corev1.Container, folder string) {
	pod := &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.name"}}
	addEnv(runner,
		corev1.EnvVar{Name: "ACTIONS_RUNNER_CONTAINER_HOOKS", Value: runnerHome + "/" + folder + "/index.js"},
		corev1.EnvVar{Name: "ACTIONS_RUNNER_POD_NAME", ValueFrom: pod},
		corev1.EnvVar{Name: "ACTIONS_RUNNER_REQUIRE_JOB_CONTAINER", Value: "true"})
}

// addMounts, addEnv and addVolume add what a template does not have yet: what its author wrote stays.
func addMounts(c *corev1.Container, mounts ...corev1.VolumeMount) {
	for _, m := range mounts {
		if !slices.ContainsFunc(c.VolumeMounts, func(have corev1.VolumeMount) bool { return have.MountPath == m.MountPath }) {
			c.VolumeMounts = append(c.VolumeMounts, m)
		}
	}
}

func addEnv(c *corev1.Container, vars ...corev1.EnvVar) {
	for _, v := range vars {
		if !slices.ContainsFunc(c.Env, func(have corev1.EnvVar) bool { return have.Name == v.Name }) {
			c.Env = append(c.Env, v)
		}
	}
}

func addVolume(t *corev1.PodTemplateSpec, name string, source corev1.VolumeSource) {
	if !slices.ContainsFunc(t.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == name }) {
		t.Spec.Volumes = append(t.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: source})
	}
}

func emptyDir() corev1.VolumeSource {
	return corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}
}

// applyOrg adapts a template to an organisation: its labels, its service account and its nodes.
func applyOrg(t *corev1.PodTemplateSpec, pool *v1alpha1.RunnerPool, e *v1alpha1.RunnerEnrollment) {
	if t.Labels == nil {
		t.Labels = map[string]string{}
	}
	maps.Copy(t.Labels, podLabels(e.Name, pool.Name, componentJob))
	t.Spec.ServiceAccountName, t.Spec.AutomountServiceAccountToken = RunnerAccount, new(false)
	delete(t.Labels, apiLabel)
	if m := pool.Spec.ContainerMode; m == v1alpha1.ModeKubernetes || m == v1alpha1.ModeKubernetesNoVolume {
		t.Spec.ServiceAccountName, t.Spec.AutomountServiceAccountToken = PodRunnerAccount, new(true)
		t.Labels[apiLabel] = "true"
	}
	t.Spec.RestartPolicy, t.Spec.PriorityClassName = corev1.RestartPolicyNever, JobPriority
	applyPlacement(&t.Spec, e)
}

func podLabels(org, pool, component string) map[string]string {
	return map[string]string{
		v1alpha1.OrgLabel:       org,
		v1alpha1.PoolLabel:      pool,
		v1alpha1.ManagedByLabel: v1alpha1.ManagedBy,
		componentLabel:          component,
	}
}

// applyPlacement adds the organisation's node placement to a pod.
func applyPlacement(s *corev1.PodSpec, e *v1alpha1.RunnerEnrollment) {
	selector, tolerations, class := placement(e)
	if s.NodeSelector == nil && len(selector) > 0 {
		s.NodeSelector = map[string]string{}
	}
	maps.Copy(s.NodeSelector, selector)
	s.Tolerations = append(s.Tolerations, tolerations...)
	if class != "" {
		s.RuntimeClassName = &class
	}
}

// placement returns the node placement of an organisation's pods. With isolation Node, they run on
// nodes with the organisation's label and taint.
func placement(e *v1alpha1.RunnerEnrollment) (selector map[string]string, tolerations []corev1.Toleration, runtimeClass string) {
	selector = map[string]string{}
	if p := e.Spec.Placement; p != nil {
		maps.Copy(selector, p.NodeSelector)
		for _, t := range p.Tolerations {
			if t.Key != v1alpha1.OrgLabel { // added below for isolation Node only
				tolerations = append(tolerations, t)
			}
		}
		runtimeClass = p.RuntimeClassName
	}
	if e.Spec.Isolation == v1alpha1.IsolationNode {
		selector[v1alpha1.OrgLabel] = e.Name
		tolerations = append(
			tolerations,
			corev1.Toleration{
				Key:      v1alpha1.OrgLabel,
				Operator: corev1.TolerationOpEqual,
				Value:    e.Name,
				Effect:   corev1.TaintEffectNoSchedule,
			},
		)
	}
	return selector, tolerations, runtimeClass
}

// PoolFault returns what is wrong with a pool, independent of its users; empty if it is valid.
func PoolFault(p *v1alpha1.RunnerPool, forge v1alpha1.ForgeType, images Images) string {
	switch {
	case forge == v1alpha1.GitHub:
		if _, err := podTemplate(p, images); err != nil {
			return err.Error()
		}
	case forge == v1alpha1.GitLab && p.Spec.Template != nil:
		return "only GitHub runners have a template"
	case forge == v1alpha1.GitLab && images.Manager == "":
		return "the settings have no image for GitLab's runner"
	case forge == v1alpha1.GitLab && cmp.Or(p.Spec.Image, images.Job) == "":
		return "neither the pool nor the settings have an image for jobs"
	}
	return ""
}

// generatedSecrets matches the names of Secrets that the fleet creates next to the runners. These are
// copies of credentials (see [fleet.CredentialName]), and tokens and configurations of GitLab
// runners (see [TokenName] and [ConfigName]). A shared namespace contains those of all
// organisations.
var generatedSecrets = regexp.MustCompile(`(-[0-9a-f]{8}|-runner-(token|config))$`)

// secretsOf returns the names of the Secrets that processes in a pod can read through the pod. It
// omits image pull secrets, which processes in the pod cannot read.
func secretsOf(s *corev1.PodSpec) (names []string) {
	for _, v := range s.Volumes {
		if v.Secret != nil {
			names = append(names, v.Secret.SecretName)
		}
		if v.CSI != nil && v.CSI.NodePublishSecretRef != nil {
			names = append(names, v.CSI.NodePublishSecretRef.Name)
		}
		if v.Projected != nil {
			for _, p := range v.Projected.Sources {
				if p.Secret != nil {
					names = append(names, p.Secret.Name)
				}
			}
		}
	}
	for _, list := range [][]corev1.Container{s.InitContainers, s.Containers} {
		for _, c := range list {
			for _, e := range c.Env {
				if e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil {
					names = append(names, e.ValueFrom.SecretKeyRef.Name)
				}
			}
			for _, e := range c.EnvFrom {
				if e.SecretRef != nil {
					names = append(names, e.SecretRef.Name)
				}
			}
		}
	}
	return names
}
