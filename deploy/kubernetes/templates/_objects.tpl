{{/* Adds the objects of a file to .objects, with the names that the settings give. */}}
{{- define "lockstep.load" -}}
{{- $values := .root.Values }}
{{- $registry := ternary (printf "%s/" $values.registry) "" (ne $values.registry "") }}
{{- $text := .root.Files.Get .path | required (printf "%s is not in the chart" .path) }}
{{- $text = regexReplaceAll "(?m)namespace: lockstep$" $text (printf "namespace: %s" .root.Release.Namespace) }}
{{- $text = regexReplaceAll "(?m)image: (lockstep-[a-z]+):.*$" $text (printf "image: %s${1}:%s" $registry $values.tag) }}
{{- $text = regexReplaceAll "lockstep-ledger\\.lockstep" $text (printf "lockstep-ledger.%s" .root.Release.Namespace) }}
{{- $objects := .objects }}
{{- range splitList "\n---\n" $text }}
{{- $object := printf "%s\n" . | fromYaml }}
{{- $_ := set $objects (printf "%s %s" $object.kind $object.metadata.name) $object }}
{{- end }}
{{- end }}

{{/* Applies one operation of a JSON patch: add and replace, by names, numbers and the end of a list. */}}
{{- define "lockstep.patch" -}}
{{- $tokens := splitList "/" (trimPrefix "/" .op.path) }}
{{- $node := .object }}
{{- $holder := .object }}
{{- $key := "" }}
{{- range initial $tokens }}
{{- if kindIs "slice" $node }}
{{- $node = index $node (int .) }}
{{- else }}
{{- $holder = $node }}
{{- $key = replace "~1" "/" . }}
{{- $node = index $node $key }}
{{- end }}
{{- end }}
{{- $value := .op.value }}
{{- if eq (last $tokens) "-" }}
{{- $_ := set $holder $key (append $node $value) }}
{{- else if kindIs "slice" $node }}
{{- $at := int (last $tokens) }}
{{- $_ := set $holder $key (concat (slice $node 0 $at) (list $value) (slice $node (add1 $at))) }}
{{- else }}
{{- $_ := set $node (replace "~1" "/" (last $tokens)) $value }}
{{- end }}
{{- end }}
