// Layers that run on several ranks. In a tensor-parallel layer (Shoeybi et al. 2019, section 3) each rank holds some heads of an attention layer, or some
// hidden units of a feed-forward layer, and the outputs of all ranks are added up. In a layer that is divided by rows each rank holds some rows of a pair
// tensor.
#pragma once

#include "polyhead/distributed/collectives.h"
#include "polyhead/nn/feed_forward.h"
#include "polyhead/nn/multi_head_attention.h"

#pragma GCC visibility push(default)
namespace polyhead::distributed {

// Returns part `rank` of a layer that is divided into `ranks` parts; the part has copies of the parameters. Of N heads, or N hidden units, the part holds those
// from N rank / ranks up to, but not including, N (rank + 1) / ranks. The outputs of all parts sum to the output of the layer; part 0 has the output's bias.
// Error for an attention layer if kv_heads is no multiple of `ranks`, if the layer has no output projection, or if it has dropout, because several ranks would
// drop other attention weights than one rank. Error for a feed-forward layer with fewer hidden units than ranks.
nn::MultiHeadAttention part_of(const nn::MultiHeadAttention& layer, int rank, int ranks);
nn::FeedForward part_of(const nn::FeedForward& layer, int rank, int ranks);

// An attention layer of which each rank holds a part. Every rank passes the same whole inputs and the same d_out, and receives the same whole output and the
// same gradients of the inputs. The gradients of the parameters are those of the rank's own part.
class TensorParallelAttention {
 public:
  TensorParallelAttention(Communicator& communicator, const nn::MultiHeadAttention& whole, const CollectiveOptions& options = {});

  // Computes what MultiHeadAttention::forward() computes. On every rank the mask, bias and sink in the options cover all heads.
  void forward(const nn::AttentionInput& input, TensorView out, const nn::AttentionOptions& options = {}, nn::MultiHeadAttention::Saved* saved = nullptr) const;
  // gradients.bias covers all heads, like the bias of the forward pass.
  void backward(const nn::MultiHeadAttention::Saved& saved, ConstTensorView d_out, const nn::MultiHeadAttention::Gradients& gradients, const nn::RunOptions& options = {}) const;

  nn::MultiHeadAttention part;

 private:
  Communicator& communicator_;
  CollectiveOptions options_;
  std::int64_t heads_, first_head_;
};

class TensorParallelFeedForward {
 public:
  TensorParallelFeedForward(Communicator& communicator, const nn::FeedForward& whole, const CollectiveOptions& options = {});

  void forward(ConstTensorView x, TensorView y, const nn::RunOptions& options = {}, nn::FeedForward::Saved* saved = nullptr) const;
  void backward(const nn::FeedForward::Saved& saved, ConstTensorView d_y, const nn::Gradients<nn::FeedForward>& gradients, const nn::RunOptions& options = {}) const;

  nn::FeedForward part;

 private:
  Communicator& communicator_;
  CollectiveOptions options_;
};

// Attention along the rows or the columns of a pair tensor z [R,R,C]. A linear layer computes the bias of the scores from z itself. This is triangle attention
// around the starting and the ending node (Jumper et al. 2021, supplementary algorithms 13 and 14), without its layer norm.
// Each rank holds some rows of z, in the order of the ranks. The bias is gathered once. For attention along columns, the ranks exchange rows for columns before
// the attention, and columns for rows after it.
enum class PairAxis : std::uint8_t { rows, columns };

class PairAttention {
 public:
  // `attention` is self-attention of width C along axis -2. `bias` is a linear layer C -> N without a bias parameter. Both layers must outlive this object.
  PairAttention(Communicator& communicator, const nn::MultiHeadAttention& attention, const nn::Linear& bias, PairAxis axis, const CollectiveOptions& options = {});

  PairAttention(Communicator&, nn::MultiHeadAttention&&, const nn::Linear&, PairAxis, const CollectiveOptions& = {}) = delete;
  PairAttention(Communicator&, const nn::MultiHeadAttention&, nn::Linear&&, PairAxis, const CollectiveOptions& = {}) = delete;

  struct Saved {
    Tensor z;     // [R_r,R,C]: this rank's rows of z; with PairAxis::columns, this rank's rows of the transpose of z
    Tensor bias;  // [R,R,N]: the bias of the scores, gathered from all ranks
    nn::MultiHeadAttention::Saved attention;
  };
  struct Gradients {
    TensorView z = {};                             // [R_r,R,C]
    nn::MultiHeadAttention* attention = nullptr;  // receives the sums over this rank's rows; call all_reduce() to add up the sums of all ranks
    nn::Linear* bias = nullptr;
  };

  // z and out [R_r,R,C] are this rank's rows.
  void forward(ConstTensorView z, TensorView out, const nn::RunOptions& options = {}, Saved* saved = nullptr) const;
  void backward(const Saved& saved, ConstTensorView d_out, const Gradients& gradients, const nn::RunOptions& options = {}) const;

 private:
  Tensor as_rows(ConstTensorView z) const;                  // Returns a copy of z; with PairAxis::columns, this rank's columns of z as rows.
  void as_given(ConstTensorView rows, TensorView to) const;  // the inverse of as_rows()
  Communicator& communicator_;
  const nn::MultiHeadAttention& attention_;
  const nn::Linear& bias_;
  PairAxis axis_;
  CollectiveOptions options_;
};

}  // namespace polyhead::distributed
#pragma GCC visibility pop
