package inject

import (
	"cmp"
	"encoding/json"
	"slices"
)

// inject returns the patch and applies it to the pod.
func (p *pod) inject(o Options) Patch {
	want := buildParts(p.settings, o)
	hash := want.hash()
	same := p.injected && p.status.Hash == hash
	fitResources(&want.Container, p.quality(), o.Sidecar.Resources)

	e := &editor{root: p.root}
	p.editContainer(e, want.Container, same)
	p.editVolumes(e, want.Volumes)
	for _, list := range []string{"initContainers", "containers"} {
		for i, c := range containerIndexes(p.spec[list]) {
			if name, _ := c["name"].(string); list == "initContainers" && name == containerName {
				continue
			} else if slices.Contains(p.settings.exclude, name) {
				p.disconnectContainer(e, c, want, "spec", list, i)
			} else {
				p.connectContainer(e, c, want, "spec", list, i)
			}
		}
	}
	p.dropUnused(e)
	if p.spec["automountServiceAccountToken"] != false {
		// The field of the pod overrides that of its ServiceAccount. Only the adapter may mount the real
		// credential.
		e.add(pointer("spec", "automountServiceAccountToken"), false)
	}
	if !same {
		p.writeStatus(e, status{o.Version, hash})
	}
	return e.patch
}

// containerIndexes returns a list of objects whose types have been checked.
func containerIndexes(list any) []map[string]any {
	var f fieldReader
	return f.objects(map[string]any{"": list}, "", "")
}

// quality summarises the resources of all containers except the adapter.
type quality struct {
	limited    bool // each has a CPU limit
	guaranteed bool // each has CPU and memory limits, and requests equal to them
}

func (p *pod) quality() quality {
	q := quality{limited: true, guaranteed: true}
	for _, m := range p.containers {
		if m.isAdapter(p) || m.list == "ephemeralContainers" {
			continue
		}
		for _, name := range []string{"cpu", "memory"} {
			limit, need := quantity(m.limits[name]), quantity(m.requests[name])
			if limit == nil || m.requests[name] != nil && (need == nil || need.Cmp(limit) != 0) {
				q.guaranteed = false
			}
			if name == "cpu" && limit == nil {
				q.limited = false
			}
		}
	}
	return q
}

// fitResources sets the adapter's resources so that the pod keeps its QoS class.
func fitResources(c *container, q quality, standard Resources) {
	if q.limited {
		c.Resources.Limits.CPU = cmp.Or(standard.Limits.CPU, standard.Requests.CPU)
	}
	if q.guaranteed {
		c.Resources.Requests = c.Resources.Limits
	}
}

// editContainer makes the adapter the first init container.
func (p *pod) editContainer(e *editor, want container, same bool) {
	inits := containerIndexes(p.spec["initContainers"])
	at := slices.IndexFunc(inits, func(c map[string]any) bool { return c["name"] == containerName })
	first := pointer("spec", "initContainers", 0)
	switch {
	case len(inits) == 0:
		e.add(pointer("spec", "initContainers"), []container{want})
	case at < 0:
		e.add(first, want)
	default:
		if next := updateContainer(inits[at], want, same); at > 0 {
			e.remove(pointer("spec", "initContainers", at))
			e.add(first, next)
		} else if !containsFields(inits[at], next) {
			e.replace(first, next)
		}
	}
}

// updateContainer returns the adapter's container, given the existing one. It keeps variables and mounts that others
// have added. If same is set, it also keeps resources that others have set, unless the pod would lose its QoS
// class.
func updateContainer(has map[string]any, want container, same bool) any {
	next := toTree(want).(map[string]any)
	var f fieldReader
	if env := containerIndexes(has["env"]); len(env) > 0 {
		others := slices.DeleteFunc(slices.Clone(env), func(v map[string]any) bool {
			return slices.ContainsFunc(environment(defaultPort), func(w variable) bool { return v["name"] == w.Name })
		})
		if len(others) > 0 {
			next["env"] = others
		}
	}
	mounts := slices.Clone(next["volumeMounts"].([]any))
	for _, m := range containerIndexes(has["volumeMounts"]) {
		if name := f.text(m, "", "name"); !isAdapterVolume(name) &&
			!slices.ContainsFunc(want.VolumeMounts, func(w mount) bool { return m["mountPath"] == w.MountPath }) {
			mounts = append(mounts, m)
		}
	}
	next["volumeMounts"] = mounts
	if same {
		r := f.object(has, "", "resources")
		l, n := f.object(r, "", "limits"), f.object(r, "", "requests")
		fits := (want.Resources.Limits.CPU == "" || l["cpu"] != nil) &&
			(want.Resources.Requests != want.Resources.Limits || equalQuantity(l["cpu"], n["cpu"]) && equalQuantity(l["memory"], n["memory"]))
		if r != nil && fits {
			next["resources"] = r
		}
	}
	return toTree(next)
}

func equalQuantity(limit, need any) bool {
	l, n := quantity(limit), quantity(need)
	return l != nil && (need == nil || n != nil && n.Cmp(l) == 0)
}

// editVolumes adds the adapter's volumes, with the real credential first, and removes volumes that only an
// older injection needed.
func (p *pod) editVolumes(e *editor, want []volume) {
	for i := len(containerIndexes(p.spec["volumes"])) - 1; i >= 0; i-- {
		name, _ := containerIndexes(p.spec["volumes"])[i]["name"].(string)
		if isAdapterVolume(name) && !slices.ContainsFunc(want, func(v volume) bool { return v.Name == name }) {
			e.remove(pointer("spec", "volumes", i))
		}
	}
	for n, w := range want {
		have := containerIndexes(p.spec["volumes"])
		at := slices.IndexFunc(have, func(v map[string]any) bool { return v["name"] == w.Name })
		switch {
		case len(have) == 0:
			e.add(pointer("spec", "volumes"), want)
		case at < 0 && n == 0:
			e.add(pointer("spec", "volumes", 0), w)
		case at < 0:
			e.add(pointer("spec", "volumes", "-"), w)
		case n == 0 && at > 0:
			e.remove(pointer("spec", "volumes", at))
			e.add(pointer("spec", "volumes", 0), w)
		case !containsFields(have[at], toTree(w)):
			e.replace(pointer("spec", "volumes", at), w)
		}
	}
}

// connectContainer changes a container so that its clients connect to the adapter instead of the API server.
func (p *pod) connectContainer(e *editor, c map[string]any, want adapterParts, at ...any) {
	place := func(more ...any) string { return pointer(append(slices.Clone(at), more...)...) }
	mounts := containerIndexes(c["volumeMounts"])
	results := slices.ContainsFunc(mounts, p.isAdapterMount)
	for i := len(mounts) - 1; i >= 0; i-- {
		if !p.isServiceAccountMount(mounts[i]) {
			continue
		}
		if results {
			e.remove(place("volumeMounts", i))
			continue
		}
		e.replace(place("volumeMounts", i), want.Mount)
		results = true
	}
	if !results && len(mounts) == 0 {
		e.add(place("volumeMounts"), []mount{want.Mount})
	} else if !results {
		e.add(place("volumeMounts", "-"), want.Mount)
	}

	var missing []variable
	for _, v := range want.Env {
		there := false
		for i, has := range containerIndexes(c["env"]) {
			if has["name"] != v.Name {
				continue
			}
			there = true
			if has["value"] != v.Value { // from an older injection
				e.replace(place("env", i), v)
			}
		}
		if !there {
			missing = append(missing, v)
		}
	}
	if len(missing) > 0 && len(containerIndexes(c["env"])) == 0 {
		e.add(place("env"), missing)
		return
	}
	// The variables come first, so that $(KUBERNETES_SERVICE_HOST) in another variable also resolves to the
	// adapter.
	for i, v := range missing {
		e.add(place("env", i), v)
	}
}

// disconnectContainer removes the credentials from an excluded container, both the real ones and the adapter's.
func (p *pod) disconnectContainer(e *editor, c map[string]any, want adapterParts, at ...any) {
	place := func(more ...any) string { return pointer(append(slices.Clone(at), more...)...) }
	for i, m := range slices.Backward(containerIndexes(c["volumeMounts"])) {
		if p.isServiceAccountMount(m) || p.isAdapterMount(m) {
			e.remove(place("volumeMounts", i))
		}
	}
	if !p.injected {
		return
	}
	for i, v := range slices.Backward(containerIndexes(c["env"])) {
		if slices.ContainsFunc(want.Env, func(w variable) bool { return v["name"] == w.Name && v["value"] == w.Value }) {
			e.remove(place("env", i))
		}
	}
}

func (p *pod) isServiceAccountMount(mt map[string]any) bool {
	name, _ := mt["name"].(string)
	at, _ := mt["mountPath"].(string)
	rest, _ := fieldPathBelow(at)
	return rest == "." && isServiceAccountVolume(p.volume(name))
}

// dropUnused removes volumes of ServiceAccount admission that no container mounts any longer.
func (p *pod) dropUnused(e *editor) {
	used := map[any]bool{}
	for _, list := range []string{"initContainers", "containers", "ephemeralContainers"} {
		for _, c := range containerIndexes(p.spec[list]) {
			for _, m := range containerIndexes(c["volumeMounts"]) {
				used[m["name"]] = true
			}
		}
	}
	for i, v := range slices.Backward(containerIndexes(p.spec["volumes"])) {
		if isServiceAccountVolume(v) && !used[v["name"]] {
			e.remove(pointer("spec", "volumes", i))
		}
	}
}

// writeStatus writes the status annotation.
func (p *pod) writeStatus(e *editor, s status) {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // a struct of two strings always marshals
	}
	meta, _ := p.root["metadata"].(map[string]any)
	switch {
	case meta == nil:
		e.add(pointer("metadata"), map[string]any{"annotations": map[string]string{Status: string(b)}})
	case meta["annotations"] == nil:
		e.add(pointer("metadata", "annotations"), map[string]string{Status: string(b)})
	default:
		e.add(pointer("metadata", "annotations", Status), string(b))
	}
}
