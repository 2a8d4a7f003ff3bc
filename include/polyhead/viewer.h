// Writes one HTML page that shows the attention maps of every head. The page needs no other file and no network.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "polyhead/error.h"
#include "polyhead/head_measures.h"
#include "polyhead/maps.h"
#include "polyhead/tensor_view.h"

#pragma GCC visibility push(default)
namespace polyhead::viewer {

// The tokens along one side of an attention map. The page shows bytes that are not valid UTF-8 as U+FFFD.
struct Tokens {
  std::vector<std::string> pieces;  // the texts of the tokens as the tokenizer wrote them, "##" included
  std::vector<bool> special = {};   // for each piece, true for a token such as [CLS], [SEP] or padding, which the page can hide; empty: all false
  std::vector<int> segment = {};    // for each piece the number 0, 1, … of its segment, in a text of several segments such as a pair of sentences; empty: all 0
  // The words that are not in the model's vocabulary: the index in pieces, and the characters in the text.
  std::vector<std::pair<std::int64_t, std::string>> unknown = {};
};

// The effect of one head: how much a text's embedding changes when the head is switched off, that is when its output is set to zero.
struct WithoutHead {
  std::int64_t layer = 0, head = 0;
  double change = 0;  // 1 - cosine of the embeddings with and without the head; if Page::without_measure is given, the quantity that it names
};

// The name of a quantity that the caller has measured for each head.
struct Measure {
  std::string name;              // the name of the quantity, such as "loss added without it"
  std::string measured_in = {};  // the unit of the quantity, such as "nats"
};

// Links between query and key words that are known to be right, such as those of a translation. The page outlines them and gives each head's alignment error
// rate (Och and Ney 2003). With the head's links A, the sure links S, and the sure and possible links P,
//   AER = 1 - (|A and S| + |A and P|) / (|A| + |S|).
// A has a link from each query word to the key word with the largest attention weight; words that are special tokens have no links in A. Known links of
// special tokens are outlined but left out of the rate.
struct Links {
  std::vector<std::pair<std::int64_t, std::int64_t>> sure = {};      // pairs of a query and a key, as indices of their tokens
  std::vector<std::pair<std::int64_t, std::int64_t>> possible = {};  // further links, which are acceptable but not required
};

// An image whose patches are the tokens of a text. The tokens that are not special are the patches, row by row from the top left.
struct Image {
  ConstTensorView pixels;             // [height, width] grey, or [height, width, 3] red, green and blue; floating in [0, 1], where 0 is black; any strides
  std::int64_t rows = 0, columns = 0;  // numbers of patches in a column and in a row; they must divide height and width
};

// The vectors from which a text's attention weights were computed. A panel of the page computes one attention weight from them, step by step:
//   score[t,s] = scale <q[t], k[s]> + bias[t,s],   weight[t,s] = exp(score[t,s]) / sum of exp(score[t,s']) over the keys s' that t may attend to
struct HeadVectors {
  ConstTensorView q, k;              // [layers,heads,T,H] [layers,K,S,H], floating; head n reads k and v of key/value head n / (heads / K)
  ConstTensorView v = {};            // [layers,K,S,V]; absent: the panel ends at the attention weight
  std::optional<double> scale = {};  // the factor of the scores; absent: 1/sqrt(H)
  ConstTensorView bias = {};         // broadcasts to [layers,heads,T,S], floating
  ConstTensorView attend = {};       // broadcasts to [layers,heads,T,S], bool: true where the query may attend to the key; absent: true everywhere
  // Tables of rotary positions (Su et al. 2021, eq. 34), for self attention: [layers or 1,T,R/2] floating, R <= H. q and k are given after the rotation of
  // pairs of features (a, b) to (a cos - b sin, a sin + b cos). The panel shows what the rotation adds to q . k. Absent: there is no rotation, or it is not
  // known.
  ConstTensorView rotary_cos = {}, rotary_sin = {};
  bool rotary_neighbours = false;  // true: features 2i and 2i + 1 are rotated as a pair; false: features i and i + R/2
};

// Tells a caller whether render() will write the q, k and v of a text into the page, so that the caller need not compute vectors that do not fit. render()
// writes the vectors of one text after the other while they fit into a budget in bytes.
class VectorBudget {
 public:
  explicit VectorBudget(double megabytes) : bytes_(megabytes * 1e6) {}
  bool take(std::int64_t numbers);  // Returns whether `numbers` float32 values fit; if so, they are subtracted from the budget.

 private:
  double bytes_;
};

// Says that a text was computed at one step of the model's training. The page has a slider over the steps of the same text.
struct Snapshot {
  std::int64_t step = 0;
  std::string answer = {};  // the model's answer at this step, in words
};

// A text with a set of attention maps. A model with an encoder and a decoder has several sets for one text.
struct Text {
  std::string text;
  Tokens queries;                   // the tokens of the T rows
  std::optional<Tokens> keys = {};  // the tokens of the S columns; absent: the queries are also the keys (self attention)
  ConstTensorView attentions;       // attention weights [layers, heads, T, S], floating, any strides
  // If given, `attentions` holds pooled maps [layers, heads, height, width], as attention_pooled_map() computes them from T queries and S keys. They serve a
  // text that is too long for a map of all pairs of queries and keys. Each cell is a block of pairs. The page shows a mean or a sum as a share: the attention
  // weight that a query of the block gives to all keys of the block, on average, so that rows sum to 1. The page names what cannot be computed from blocks.
  // Special tokens and segments are not marked, and links, gate, pair_bias, block_keys and vectors are refused.
  std::optional<Pooling> pooled = {};
  std::string name = {};                  // the name of this set of maps, such as "Cross-attention"
  // further sets of maps, each with its own tokens, layers and heads, but without `tabs`; the page shows each set in a tab
  std::vector<Text> tabs = {};
  std::string query_axis = {};            // the label of the rows, such as "residue i"; empty: "query"
  std::string key_axis = {};              // the label of the columns; empty: "key"
  std::vector<bool> block_keys = {};      // [S]: true for a key to which no query may attend; the page shades it. Empty: there is no such key
  std::optional<Links> links = {};
  std::optional<Image> image = {};        // for self attention: the image beside the map, which the page tints by the attention weights of a chosen patch
  // [layers, heads, T, V] in [0, 1]: the gate by which the heads' outputs are multiplied; shown as a strip beside the map
  ConstTensorView gate = {};
  // [layers, heads, T, S] floating: the bias that was added to the scores. The page then has a further tab, with the attention weights without the bias,
  //   p[t,s] exp(-bias[t,s]) / sum over s' of p[t,s'] exp(-bias[t,s']),
  // where an attention weight of exactly 0 stays 0. Error if the weight without the bias of a pair with p = 0 could be 1e-5 or more, unless its bias is below -1e4 (a mask);
  // if a row that is not all 0 does not sum to 1 within 0.01; and if a bias is NaN, or is infinite where p > 0.
  ConstTensorView pair_bias = {};
  std::optional<Snapshot> snapshot = {};
  std::vector<WithoutHead> without = {};  // one entry for each head that was switched off; the page shows these heads first
  std::optional<HeadVectors> vectors = {};
  // [layers, heads, S], floating and not negative: |W_O^n v[s]|, the norms of the transformed value vectors (polyhead/nn/value_norms.h). The page then has a
  // switch between attention weights and attention weights times these norms (Kobayashi et al. 2020). Error for pooled maps.
  ConstTensorView value_norms = {};
  std::int64_t width = 0;     // E, the width of the input of the attention layers, for the shapes that the page shows; 0: not known
  bool learned_queries = false;  // true: the queries are parameters, as in attention pooling; the page then does not show the steps of a layer
  // how many values of q, k and v did not fit into the budget; the page gives this as the reason why it cannot compute an attention weight
  std::int64_t left_out = 0;
};

// The language of the page's labels and explanations. A reader can change it in the page's menu.
enum class Language : std::uint8_t {
  readers,  // Chinese if the reader's browser prefers it, else English
  english,
  chinese,
};

struct Page {
  std::string title;
  std::string model = {};   // a line about the model, shown below the title
  std::vector<Text> texts;  // the page has a selector if there are several texts
  std::string start = {};   // the view that the page opens with, as a URL fragment: "#layer=3&head=mean&row=0"; empty: all heads
  Language language = Language::readers;
  std::optional<Measure> without_measure = {};  // the quantity in WithoutHead::change; absent: 1 - cosine
  // Measures of the heads over further texts, for a scatter plot in the page. The heads must be those of each text's first set of maps of self attention.
  std::optional<MeasuredTexts> measured = {};
  double vector_megabytes = 4;  // how many megabytes of q, k and v the page may hold; see VectorBudget
};

inline constexpr std::int64_t kMaxAttentionWeights = std::int64_t{1} << 26;  // maximum number of attention weights in a page; such a page has 90 MB of HTML

// Decides how a page shows each text, given the number of tokens of each text, and the number of heads of all layers together. Returns 0 for a text whose maps
// are shown pair by pair, else the number of rows and columns of its pooled maps: at most 512, and at most 2^23 blocks over all heads. A text of more than
// `most_numbers` attention weights is always pooled. If the page is still too large, the largest remaining text is pooled, then the next, until the page is
// small enough. Error if even pooled maps are too large.
std::vector<std::int64_t> pooled_sides(std::span<const std::int64_t> tokens, std::int64_t heads, std::int64_t most_numbers = kMaxAttentionWeights);

// Returns the page as HTML text in UTF-8. Error if tokens and attentions have different sizes; if an attention weight or gate is below 0 or above 1 by more
// than 1e-3; if all texts together have more than kMaxAttentionWeights attention weights; or if an attention weight differs by more than 5e-3 from the one that
// follows from q, k, bias and mask. NaN is shown as NaN.
std::string render(const Page& page);

// A model of the user that a live page contains in addition to its built-in models. The page opens with this model.
struct LiveModel {
  std::string name;
  std::span<const std::uint8_t> files;  // the model's files, in the format of apps/polyhead/page_files.h
  // How much the results changed when the parameters were rounded to int8, measured on `texts` texts: the largest and the mean difference of attention weights,
  // and the smallest cosine between a text's embeddings with and without the rounding. texts == 0: the page says nothing about rounding.
  struct Rounding {
    std::int64_t texts = 0;
    double largest = 0, mean = 0, least_cosine = 1;
  } rounding = {};
};

// A page in which readers type their own text. It contains the library, compiled to WebAssembly, with its built-in models. It computes all maps again after
// each keystroke. It loads nothing from the network.
struct LivePage {
  std::string title;
  std::span<const std::uint8_t> engine;  // the module that `scripts/live-engine` builds, compressed by gzip
  std::string version;                   // version of polyhead; the page refuses an engine of another version
  std::string task = "sentiment";        // the model that the page opens with: "sentiment" or "translate"; a page with `model` opens with that model
  std::string text;                      // the text that the page shows first
  std::optional<LiveModel> model = {};
  Language language = Language::readers;
};

// Returns the page as HTML text in UTF-8. Error if the engine is missing or not compressed by gzip.
std::string render_live(const LivePage& page);

}  // namespace polyhead::viewer
#pragma GCC visibility pop
