package inject

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
)

// pod is a decoded and validated pod.
type pod struct {
	root, spec  map[string]any
	label       string
	annotations map[string]string
	mirror      bool
	settings    podSettings
	injected    bool   // it already has the adapter
	status      status // of the previous injection
	warnings    []string

	containers []containerRef // all containers, init containers first
	volumes    []map[string]any
}

// containerRef is a container of a pod, reduced to the fields that injection needs.
type containerRef struct {
	list     string // of the pod's spec
	index    int
	name     string
	mounts   []map[string]any
	env      []map[string]any
	ports    []map[string]any
	limits   map[string]any
	requests map[string]any // requests
	where    string         // for messages
}

// parsePod reads a pod and checks that the fields it reads have the types of the API.
func parsePod(root map[string]any, o Options) (*pod, *refusal) {
	p := &pod{root: root}
	var f fieldReader
	meta := f.object(root, "", "metadata")
	p.spec = f.object(root, "", "spec")
	labels := f.strings(meta, "metadata", "labels")
	p.annotations = f.strings(meta, "metadata", "annotations")
	p.volumes = f.objects(p.spec, "spec", "volumes")
	for _, v := range p.volumes {
		f.text(v, "spec.volumes", "name")
		for _, s := range f.objects(f.object(v, "spec.volumes", "projected"), "spec.volumes.projected", "sources") {
			f.text(
				f.object(s, "spec.volumes.projected.sources", "serviceAccountToken"),
				"spec.volumes.projected.sources.serviceAccountToken",
				"audience",
			)
		}
	}
	for _, list := range []string{"initContainers", "containers", "ephemeralContainers"} {
		for i, c := range f.objects(p.spec, "spec", list) {
			where := fmt.Sprintf("spec.%s[%d]", list, i)
			resources := f.object(c, where, "resources")
			m := containerRef{
				list: list, index: i, name: f.text(c, where, "name"), mounts: f.objects(c, where, "volumeMounts"), env: f.objects(c, where, "env"),
				ports: f.objects(
					c,
					where,
					"ports",
				),
				limits: f.object(resources, where+".resources", "limits"), requests: f.object(resources, where+".resources", "requests"),
			}
			m.where = fmt.Sprintf("the container %.63q", m.name)
			f.text(c, where, "targetContainerName")
			for _, x := range m.mounts {
				f.text(x, where+".volumeMounts", "name")
				f.text(x, where+".volumeMounts", "mountPath")
				f.flag(x, where+".volumeMounts", "readOnly")
			}
			for _, x := range m.env {
				f.text(x, where+".env", "name")
				f.text(x, where+".env", "value")
			}
			p.containers = append(p.containers, m)
		}
	}
	for _, key := range []string{"hostNetwork", "hostPID", "shareProcessNamespace", "automountServiceAccountToken"} {
		f.flag(p.spec, "spec", key)
	}
	f.text(f.object(p.spec, "spec", "os"), "spec.os", "name")
	f.strings(p.spec, "spec", "nodeSelector")
	if f.problem != "" {
		return nil, refuse(BadPod, "the pod cannot be read: %s", f.problem)
	}
	p.label = labels[Label]
	if _, there := labels[Label]; there && p.label != "true" && p.label != "false" {
		return nil, refuse(BadLabel, `the label %s is %.63q; it must be "true" or "false"`, Label, p.label)
	}
	_, p.mirror = p.annotations["kubernetes.io/config.mirror"]
	p.status, p.injected = readStatus(p.annotations)
	return p, nil
}

// skip returns the reason for not injecting the pod, or "".
func (p *pod) skip(unlabelled Unlabelled) (Code, string) {
	switch {
	case p.mirror: // the kubelet runs it from a file, whatever the API server decides
		return MirrorPod, "it is the mirror of a static pod"
	case p.label == "false":
		return OptedOut, fmt.Sprintf(`the label %s is "false"`, Label)
	case p.label == "" && unlabelled == SkipUnlabelled:
		return NotLabelled, fmt.Sprintf(`the label %s is not "true"`, Label)
	}
	return "", ""
}

// refusal returns the reason why the pod cannot have the adapter, or nil. It sets p.settings.
func (p *pod) refusal(o Options) *refusal {
	if len(p.spec) == 0 || !slices.ContainsFunc(p.containers, func(m containerRef) bool { return m.list == "containers" }) {
		return refuse(BadPod, "the pod has no containers")
	}
	w, unknown, err := parseSettings(p.annotations, o.port())
	if err != nil {
		return refuse(BadAnnotation, "%v", err)
	}
	p.settings = w
	for _, name := range unknown {
		p.warnings = append(p.warnings, fmt.Sprintf("the annotation %s%.63s is unknown to the adapter's injection", domain, name))
	}
	for _, name := range w.exclude {
		if name == containerName || !slices.ContainsFunc(p.containers, func(m containerRef) bool { return m.name == name }) {
			return refuse(BadAnnotation, "the annotation %s has the container %q, which the pod does not have", excludeAnnotation, name)
		}
	}
	if o.Kubernetes.lacksSidecars() {
		return refuse(
			ClusterTooOld,
			"the API server has version %d.%d; the adapter is a sidecar container, which needs 1.29",
			o.Kubernetes.Major,
			o.Kubernetes.Minor,
		)
	}
	for _, check := range []func() *refusal{p.checkPodKind, p.checkNames, p.checkPorts} {
		if r := check(); r != nil {
			return r
		}
	}
	for _, m := range p.containers {
		if m.isAdapter(p) {
			continue
		}
		if r := p.checkRealToken(m); r != nil {
			return r
		}
		if !slices.Contains(w.exclude, m.name) {
			if r := p.checkVariables(m); r != nil {
				return r
			}
		}
	}
	return nil
}

// isAdapter reports whether m is the adapter's container from a previous injection.
func (m containerRef) isAdapter(p *pod) bool {
	return p.injected && m.name == containerName && m.list == "initContainers"
}

func (p *pod) checkPodKind() *refusal {
	var f fieldReader // parsePod has checked the types
	if f.flag(p.spec, "", "hostNetwork") {
		return refuse(
			HostNetwork,
			"hostNetwork: every process of the node could use the pod's rights through the adapter, and two such pods could not share a node",
		)
	}
	selector := f.strings(p.spec, "", "nodeSelector")
	if f.text(f.object(p.spec, "", "os"), "", "name") == "windows" || selector["kubernetes.io/os"] == "windows" ||
		selector["beta.kubernetes.io/os"] == "windows" {
		return refuse(Windows, "the adapter runs on Linux nodes only")
	}
	for _, key := range []string{"shareProcessNamespace", "hostPID"} {
		if f.flag(p.spec, "", key) && !p.settings.sharedPID {
			return refuse(
				SharedProcesses,
				`%s lets other containers read the pod's real credential from the adapter's process; to accept that, set the annotation %s: "true"`,
				key,
				sharedPIDAnnotation,
			)
		}
	}
	return nil
}

func (p *pod) checkNames() *refusal {
	for _, m := range p.containers {
		if m.name == containerName && !m.isAdapter(p) {
			return refuse(NameTaken, "the pod already has a container %q (in %s); the adapter needs that name", containerName, m.list)
		}
	}
	for _, v := range p.volumes {
		if name, _ := v["name"].(string); isAdapterVolume(name) && !p.injected {
			return refuse(NameTaken, "the pod already has a volume %q; the adapter needs that name", name)
		}
	}
	return nil
}

func (p *pod) checkPorts() *refusal {
	for _, m := range p.containers {
		for _, port := range m.ports {
			if protocol, _ := port["protocol"].(string); m.isAdapter(p) || protocol != "" && protocol != "TCP" {
				continue
			}
			n := quantity(port["containerPort"])
			if n == nil || !n.IsInt() {
				continue // the API server reports the error
			}
			switch v := n.Num().Uint64(); {
			case v == uint64(p.settings.port):
				return refuse(
					PortTaken,
					"%s has port %d, where the adapter listens; to give the adapter another port, set the annotation %s",
					m.where,
					v,
					portAnnotation,
				)
			case v == adminPort, v == metricsPort && p.settings.metrics:
				return refuse(PortTaken, "%s has port %d, which the adapter needs", m.where, v)
			}
		}
	}
	return nil
}

// fieldPathBelow returns the path of f relative to credentialsPath, "." for that path itself, or false if f is
// elsewhere. Most images link /var/run to /run.
func fieldPathBelow(f string) (string, bool) {
	f = path.Clean("/" + f)
	if rest, ok := strings.CutPrefix(f, "/run/"); ok {
		f = "/var/run/" + rest
	}
	if f == credentialsPath {
		return ".", true
	}
	return strings.CutPrefix(f, credentialsPath+"/")
}

// checkRealToken refuses mounts that give a container the pod's real credential, or that hide the
// adapter's credential.
func (p *pod) checkRealToken(m containerRef) *refusal {
	for _, mt := range m.mounts {
		name, _ := mt["name"].(string)
		at, _ := mt["mountPath"].(string)
		rest, here := fieldPathBelow(at)
		v := p.volume(name)
		switch {
		case p.isAdapterMount(mt):
		case isAdapterVolume(name):
			return refuse(NameTaken, "%s mounts %q, which belongs to the adapter", m.where, name)
		case isServiceAccountVolume(v) && rest == ".": // the adapter's mount replaces it
		case projectsRealToken(v):
			return refuse(
				RealTokenMounted,
				"%s mounts the volume %q, a token for this cluster's API server, which would bypass the adapter; give the token another audience, or remove it",
				m.where,
				name,
			)
		case here && !slices.Contains(p.settings.exclude, m.name):
			return refuse(CredentialsPathTaken, "%s mounts the volume %q at %s, where the adapter's credentials must be", m.where, name, at)
		}
	}
	return nil
}

// isAdapterMount reports whether a mount is the one that injection adds.
func (p *pod) isAdapterMount(mt map[string]any) bool {
	return p.injected && mt["name"] == accessVolume && mt["mountPath"] == credentialsPath && mt["readOnly"] == true &&
		mt["subPath"] == nil &&
		mt["subPathExpr"] == nil
}

func (p *pod) volume(name string) map[string]any {
	for _, v := range p.volumes {
		if v["name"] == name {
			return v
		}
	}
	return nil
}

// generatedVolumeName matches the volume names of ServiceAccount admission.
var generatedVolumeName = regexp.MustCompile(`^kube-api-access-[a-z0-9]{5}$`)

// isServiceAccountVolume reports whether v is the volume that ServiceAccount admission adds.
func isServiceAccountVolume(v map[string]any) bool {
	name, _ := v["name"].(string)
	return generatedVolumeName.MatchString(name) && projectsRealToken(v)
}

// projectsRealToken reports whether v holds a token that this cluster's API server accepts.
func projectsRealToken(v map[string]any) bool {
	var f fieldReader
	for _, s := range f.objects(f.object(v, "", "projected"), "", "sources") {
		if t := f.object(s, "", "serviceAccountToken"); t != nil {
			switch f.text(t, "", "audience") {
			case "",
				"https://kubernetes.default.svc",
				"https://kubernetes.default.svc.cluster.local",
				"kubernetes.default.svc",
				"api",
				"kubernetes":
				return true // no audience, or a common audience of API servers
			}
		}
	}
	return false
}

func (p *pod) checkVariables(m containerRef) *refusal {
	for _, want := range environment(p.settings.port) {
		for _, e := range m.env {
			if e["name"] != want.Name {
				continue
			}
			value, literal := e["value"].(string)
			switch _, from := e["valueFrom"].(map[string]any); {
			case from:
				return refuse(VariableTaken, "%s sets %s from another source; the adapter sets it to %s", m.where, want.Name, want.Value)
			// values of an older injection are replaced
			case literal && value == want.Value, p.injected && m.list != "ephemeralContainers":
			default:
				return refuse(VariableTaken, "%s sets %s to %.80q; the adapter sets it to %s", m.where, want.Name, value, want.Value)
			}
		}
	}
	return nil
}
