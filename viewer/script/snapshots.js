// The snapshots of a training run: the same text at several training steps. A slider moves between them.

// The snapshots of the text with index `at`, in the order of their steps, as the indices of their first tabs. Empty for a text that is not a snapshot. First
// tabs are compared, because other tabs may have different texts: a translator's decoder has the translation.
function snapshotsOf(texts, at) {
  const { text, step, page } = texts[tabsOf(texts, at)[0]];
  return step === null ? [] : firstsOf(texts).filter((index) => texts[index].step !== null && texts[index].text === text && texts[index].page === page).sort((a, b) => texts[a].step - texts[b].step);
}

// Shows the slider if the text is a snapshot, and hides it otherwise.
function showSnapshots(texts, at) {
  const steps = snapshotsOf(texts, at), first = tabsOf(texts, at)[0], now = steps.indexOf(first);
  $("step-control").hidden = $("step-note").hidden = steps.length < 2;
  if (steps.length < 2) return;
  const { step, answer } = texts[first];
  Object.assign($("step"), { max: steps.length - 1, value: now });
  const told = say("{0} of {1}", step, texts[steps.at(-1)].step);
  $("step").setAttribute("aria-valuetext", answer ? say("{0}: {1}", told, answer) : told);
  $("step-value").textContent = told;
  $("step-answer").textContent = answer;
}

// True if two texts have the same words. A chosen pair of words then stays chosen.
const sameWords = (a, b) => ["queries", "keys"].every((side) => a[side].size === b[side].size && a[side].pieces.every((piece, at) => piece === b[side].pieces[at]));
